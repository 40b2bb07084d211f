"""The conformance kit on a family of Triton kernels, without a GPU: it passes, and planted faults are found."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton's interpreter runs the kernels of these tests; pip install triton")

CHECK = """
    from sgljit_tools.testing import check_op
    check_op("tri_family.add", checks={!r})
"""
DRY_RUN = """
    from sgljit_core.families import loading
    from sgljit_tools.testing.family_checks import FAMILY_CHECKS
    FAMILY_CHECKS["dry_run"](loading.load("tri_family"))
"""


def edit(package, before, after):
    file = package / "kernels" / "add.py"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.mark.slow
def test_a_right_op_passes(run):
    run(CHECK.format(["results", "reads", "repeats", "layouts", "sizes", "own_work", "returns"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("value, mask=i < n)", "value, mask=i < n + 1)", "behind"),
        ("value += scaled", "value -= scaled", "out differs at"),
    ],
    ids=["one element behind the end", "wrong result"],
)
def test_a_planted_fault_is_found(run, package, before, after, says):
    edit(package, before, after)
    failed = run(CHECK.format(["results"]), fails=True)
    assert "Fault: tri_family.add, results" in failed
    assert says in failed


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_is_found_by_the_dry_run(run, package):
    """The interpreter takes any Python, and Triton's compiler does not."""
    run(DRY_RUN)
    edit(package, "if y is not None:", "assert [one for one in (1, 2)]\n    if y is not None:")
    failed = run(DRY_RUN, fails=True)
    assert "does not compile" in failed
    assert "CompilationError" in failed


@pytest.mark.slow
def test_an_edited_kernel_is_interpreted_anew_and_its_error_is_raised(run):
    run("""
        import tri_family, torch
        from pathlib import Path
        from tri_family.ops import add
        x, out = torch.ones(4, 64), torch.empty(4, 64)
        add(x, x, out)
        assert torch.equal(out, 2 * x)
        file = Path(tri_family.__path__[0], "kernels", "add.py")
        text = file.read_text()
        file.write_text(text.replace("value += scaled", "value -= scaled"))
        add(x, x, out)
        assert torch.equal(out, 0 * x)
        file.write_text(text.replace("value += scaled", "value += nothing"))
        try:
            add(x, x, out)
        except RuntimeError as error:
            assert "tri_family.add, in Triton's interpreter: " in str(error) and "nothing" in str(error), error
        else:
            raise AssertionError
    """)


def test_a_process_that_interprets_runs_kernels_itself(run):
    run("""
        import triton, torch
        from sgljit_triton import interpreter
        from tri_family.ops import add
        x, out = torch.ones(4, 64), torch.empty(4, 64)
        add(x, None, out)
        assert torch.equal(out, x) and not interpreter._running
    """, TRITON_INTERPRET="1")  # fmt: skip


def test_without_triton_the_cpu_says_what_to_install(run):
    failed = run("""
        import sys, torch
        sys.modules["triton"] = None
        from tri_family.ops import add
        add(torch.ones(4, 64), None, torch.empty(4, 64))
    """, fails=True)  # fmt: skip
    assert "ToolchainNotFoundError: Triton not found; it is needed to compile tri_family.add on the CPU" in failed
