"""What the checks of a family look at: the variables of its libraries, and the driver of a dry run."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sgljit_core.families import loading
from sgljit_tools.testing import family_checks
from sgljit_tools.testing.family_checks import compiles, dry_run
from sgljit_tools.testing.subject import NotApplicable
from sgljit_tools.testing.without_compilers import unique_symbols


def test_statics_of_the_standard_library_are_no_fault(tmp_path):
    source = tmp_path / "statics.cpp"
    source.write_text(
        "#include <string>\n"
        "template class std::basic_string<unsigned short>;\n"  # its npos is a variable that libraries share
        "template <class T> struct Own { static int count; };\n"
        "template <class T> int Own<T>::count = 0;\n"
        "int* get() { return &Own<int>::count; }\n"
    )
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    library = tmp_path / "statics.so"
    subprocess.run([compiler, "-fPIC", "-shared", "-fgnu-unique", str(source), "-o", str(library)], check=True)
    assert b"nposE" in library.read_bytes()
    assert unique_symbols(library) == ["_ZN3OwnIiE5countE"]


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["quant", "wait_value"])
def test_a_dry_run_uses_no_driver_of_the_machine(family):
    said = dry_run(loading.load(family))
    assert " kernels compiled, " in said
    assert "CUDA_ERROR" not in said


@pytest.mark.slow  # compiles the kernels of a family
def test_a_dry_run_makes_the_tensor_that_an_op_makes_and_returns():
    try:
        said = dry_run(loading.load("activation"))
    except NotApplicable as reason:
        if "no op asks" in str(reason):
            raise
        pytest.skip(str(reason))
    assert " kernels compiled, " in said
    assert "not called to the end" not in said


def test_the_calls_of_a_family_are_recorded_once(monkeypatch):
    family, recorded = loading.load("wait_value"), []

    def record(*given, **options):
        recorded.append(family_checks_record(*given, **options))
        return recorded[-1]

    family_checks_record = family_checks.record
    monkeypatch.setattr(family_checks, "record", record)
    compiles(family)
    assert dry_run(family).startswith("CUDA: 2 kernels compiled, ")
    assert len(recorded) == 1
    dry_run(family)  # what was recorded for an earlier run may be of other sources
    assert len(recorded) == 2
