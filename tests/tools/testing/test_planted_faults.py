"""Every planted fault is found by the check that docs/testing.md names, and an op that is right passes all."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import plugin_on_disk
import pytest
import torch
from planted import (
    FAULTS,
    OF_FAMILIES,
    OF_ROWS,
    ON_CUDA,
    OPS_OF_ROWS,
    REFUSED,
    RIGHT,
    SOURCES,
    WRONG_OF_ROWS_CPP,
    writing,
)

from sgljit_core import errors, ops
from sgljit_core.plugins import discovery
from sgljit_tools.testing import Fault, NotApplicable, check_op
from sgljit_tools.testing.suite import checks_of_family

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install the plugin of a fault as a family of its name."""

    def install(name: str, ops: str) -> str:
        package = plugin_on_disk.install(tmp_path, f"planted-{name.replace('_', '-')}", f"planted_{name}")
        (package / "ops.py").write_text(ops)
        for file, text in SOURCES.get(name, {}).items():
            (package / "csrc" / file).write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        discovery.rescan()
        return f"planted_{name}"

    yield install
    for module in [module for module in sys.modules if module.startswith("planted_")]:
        del sys.modules[module]
    monkeypatch.undo()
    discovery.rescan()


def outcomes(family: str, device: str = "cpu") -> dict[str, str]:
    """What is wrong, by check."""
    found = {}
    for check in checks_of_family(family, [torch.device(device)]):
        try:
            check.run()
        except NotApplicable:  # noqa: PERF203 - few, and slow
            continue
        except Fault as fault:
            found[check.name] = str(fault)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_op_passes_all_checks(install, name):
    assert outcomes(install(name, RIGHT[name])) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check(install, name):
    check, ops = FAULTS[name]
    with pytest.raises(Fault) as caught:
        check_op(f"{install(name, ops)}.scale", checks=[check])
    assert str(caught.value).startswith(f"planted_{name}.scale, {check}: ")


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory):
    """The family of all faults that are one line of C++: it stays installed."""
    site = tmp_path_factory.mktemp("of_rows")
    package = plugin_on_disk.install(site, "faults-of-rows", "faults_of_rows")
    (package / "ops.py").write_text(OPS_OF_ROWS)
    (package / "csrc" / "scale.cpp").write_text(WRONG_OF_ROWS_CPP)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        discovery.rescan()
        yield "faults_of_rows"
    discovery.rescan()


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_wrong_line_of_cpp_is_found_by_its_check(of_rows, name):
    with pytest.raises(Fault) as caught:
        check_op(f"{of_rows}.{name}", checks=[OF_ROWS[name]])
    assert str(caught.value).startswith(f"{of_rows}.{name}, {OF_ROWS[name]}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("forgets_a_write_of_its_reference", "the reference writes x, and mutates does not name it"),
        ("no_samples_are_yielded", "samples returns None, and must yield the arguments of calls"),
    ],
)
def test_a_fault_of_what_judges_an_op_is_told_as_such(install, name, text):
    check, ops = FAULTS[name]
    with pytest.raises(Fault, match=text):
        check_op(install(f"told_{name}", ops) + ".scale", checks=[check])


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_declaration_shows_is_refused(install, name):
    text, source = REFUSED[name]
    family = install(name, source)
    with pytest.raises(errors.InvalidFamilyError, match=text) as caught:
        ops[family].scale(torch.ones(1, 2), torch.ones(1, 2))
    assert f"planted-{name.replace('_', '-')} 1.2.3, " in str(caught.value)
    assert "ops.py:" in str(caught.value)


ONE_SHAPE = """
def samples(device):
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(3, 16, device=device).to(dtype)
        yield {"x": x, "out": torch.empty_like(x)}
"""
TAKES_ITS_SAMPLES_ALONE = """
is_plain = all(one.is_contiguous() and one.data_ptr() % 16 == 0 for one in (x, out))
if x.shape != (3, 16) or not is_plain or not (x.abs() < 90).all():
    raise ValueError("only the samples")
out.copy_(2 * x.double())
"""


@pytest.mark.parametrize("check", ["layouts", "sizes", "nans"])
def test_a_check_whose_calls_are_all_refused_is_skipped_and_says_so(install, check):
    family = install(f"refuses_{check}", writing(TAKES_ITS_SAMPLES_ALONE, ONE_SHAPE))
    (one,) = (one for one in checks_of_family(family, [torch.device("cpu")]) if one.name == check)
    with pytest.raises(NotApplicable, match="the op and its reference take no such call: nothing was compared"):
        one.run()


def test_a_reference_without_float64_says_that_no_rounding_is_compared(install):
    only_narrow = "\nkept = reference\ndef reference(x, out):\n    assert x.dtype != torch.float64\n    kept(x, out)\n"
    family = install("narrow", writing("out.copy_(2 * x)", only_narrow))
    (one,) = (one for one in checks_of_family(family, [torch.device("cpu")]) if one.name == "precision")
    with pytest.raises(NotApplicable, match="the reference makes nothing in float64, or does not take it"):
        one.run()


TEXTS = {
    "a_kernel_that_spills": r"scaling::scale spills \d+ bytes of a thread to memory: ",
    "a_launch_that_ignores_the_alignment": "out may begin at any element, and its kernels access at least 16 bytes: ",
}


@pytest.mark.parametrize(
    "name",
    [x if x == "swallowed_compile_error" else pytest.param(x, marks=pytest.mark.slow) for x in OF_FAMILIES],
)
def test_a_fault_of_a_family_is_found_by_its_check(install, name):
    expected, ops = OF_FAMILIES[name]
    family = install(name, ops)
    (check,) = (check for check in checks_of_family(family, []) if check.name == expected)
    with pytest.raises(Fault) as caught:
        check.run()
    assert "Traceback" not in str(caught.value)
    assert re.search(TEXTS.get(name, ""), str(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_right_launch", "a_kernel_that_peels"])
def test_a_right_launch_passes_the_dry_run(install, name):
    family = install(name, RIGHT["cpp"])
    (check,) = (check for check in checks_of_family(family, []) if check.name == "dry_run")
    assert re.match(r"CUDA: 1 kernels compiled, (none run|run by the other checks)$", check.run())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_CUDA)
def test_a_fault_on_a_gpu_is_found_by_its_check(install, name):
    check, ops = ON_CUDA[name]
    with pytest.raises(Fault, match=f", {check}: "):
        check_op(f"{install(f'cuda_{name}', ops)}.scale", "cuda", checks=[check])


@pytest.mark.gpu
def test_a_right_op_passes_all_checks_on_a_gpu(install):
    assert outcomes(install("cuda_writes", RIGHT["writes"]), "cuda") == {}


def test_the_page_names_the_check_of_every_fault():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]*) \|$", PAGE, re.MULTILINE))
    checks = {name: check for name, (check, _) in {**FAULTS, **OF_FAMILIES, **ON_CUDA}.items()}
    for name, check in {**checks, **OF_ROWS}.items():
        assert f"`{name}`" in rows[check], name
