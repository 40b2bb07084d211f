"""The conformance kit on a family of Triton kernels, without a GPU: it passes, and planted faults are found."""

from __future__ import annotations

import pytest

from .conftest import write_family

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
    run(CHECK.format(["results", "nans", "reads", "repeats", "layouts", "sizes", "own_work", "returns"]))


@pytest.mark.slow
def test_bfloat16_is_rounded_to_the_nearest_as_on_a_gpu(run, package):
    edit(package, "value += scaled(tl.load(y + i, mask=i < n), alpha)", "value = value.to(tl.float32) * 1.3")
    run("""
        import torch
        from tri_family.ops import add
        x = torch.randn(2, 2048).to(torch.bfloat16)
        x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        out = torch.empty_like(x)
        add(x, x, out)
        wanted = (x.float() * 1.3).to(torch.bfloat16)
        torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
    """)


def test_memory_that_is_too_large_to_copy_is_refused(run):
    run("""
        import torch
        from tri_family.ops import add
        x = torch.empty(2**31)[: 4 * 64].view(4, 64)  # of which nothing is touched
        try:
            add(x, x, torch.empty(4, 64))
        except ValueError as error:
            assert "lies in 8192 MiB of memory. Triton's interpreter" in str(error), error
        else:
            raise AssertionError
    """)


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


@pytest.mark.slow
def test_one_process_interprets_the_kernels_of_all_files(run, package):
    """Kernels of two files and two families take turns; an edit of one is seen, and the process stays."""
    (package / "kernels" / "other.py").write_text(
        (package / "kernels" / "add.py").read_text().replace("value += scaled", "value -= scaled")
    )
    (package / "kernels" / "third.py").write_text((package / "kernels" / "add.py").read_text())
    write_family(package.parent / "second", "second_family")
    run("""
        import sys, tri_family, torch
        from pathlib import Path
        sys.path.insert(0, str(Path(tri_family.__path__[0]).parent / "second"))
        from sgljit_triton import interpreter
        from tri_family.ops import ADD, TRITON
        from second_family.ops import ADD as SECOND
        x, out, pids = torch.ones(64), torch.empty(64), set()
        def result(kernel):
            kernel.bind(BLOCK=64)((1, 1, 1), x, x, out, 64, 2.0)
            pids.add(interpreter._running[0]._process.pid)
            return out[0].item()
        other = TRITON.kernel("other.py", "add")
        for _ in range(2):
            assert [result(one) for one in (ADD, other, SECOND)] == [3, -1, 3]
        file = Path(tri_family.__path__[0], "kernels", "common.py")
        file.write_text(file.read_text().replace("x * alpha", "x * alpha + 1"))
        third = TRITON.kernel("third.py", "add")  # it imports what was edited, and has not run before
        assert [result(one) for one in (third, ADD, SECOND, other, ADD)] == [4, 4, 3, -2, 4]
        assert len(pids) == 1
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


@pytest.mark.parametrize(("missing", "told"), [("triton", "Triton"), ("numpy", "numpy")])
def test_without_what_interprets_the_cpu_says_what_to_install(run, missing, told):
    failed = run(f"""
        import sys, torch
        sys.modules["{missing}"] = None
        from tri_family.ops import add
        add(torch.ones(4, 64), None, torch.empty(4, 64))
    """, fails=True)  # fmt: skip
    assert f"ToolchainNotFoundError: {told} not found; it is needed to compile tri_family.add on the CPU" in failed
