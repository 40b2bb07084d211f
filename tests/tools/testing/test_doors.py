"""The three doors of the kit: ``sgljit test``, pytest, and ``check_op``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import plugin_on_disk
import pytest
import torch
from planted import FAULTS, IN_PLACE_OF, OF_ROWS_CPP, REFUSED, RIGHT, in_cpp, writing

from sgljit_core import errors
from sgljit_tools.errors import NoDeviceError
from sgljit_tools.testing import Fault, check_op

OWN_TESTS = """
import pytest

def test_of_its_own():
    pass

@pytest.mark.gpu
def test_on_a_gpu():
    pass
"""


@pytest.fixture
def run(children, private_cache, tmp_path):
    """Run a module with a plugin of one op installed, whose body is the text given."""

    def run(
        ops: str, *command: str, csrc: dict[str, str] | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        package = plugin_on_disk.install(tmp_path, "planted-door", "door")
        (package / "ops.py").write_text(ops)
        for file, text in (csrc or {}).items():
            (package / "csrc" / file).write_text(text)
        (package / "tests").mkdir()
        (package / "tests" / "__init__.py").touch()
        (package / "tests" / "test_own.py").write_text(OWN_TESTS)
        variables = {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
            "PYTEST_ADDOPTS": "-p no:hypothesispytest",  # which imports hypothesis at the end, with or without use
            "SGLJIT_CACHE_DIR": str(private_cache),
            **environment,
        }
        return children.module(*command, cwd=tmp_path, **variables)

    return run


def results(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    lines = map(json.loads, done.stdout.splitlines())
    return {line["test"].rpartition("/")[2]: line for line in lines}


@pytest.mark.slow
def test_the_command_runs_the_tests_of_a_family_and_the_checks(run):
    done = run(
        RIGHT["writes"], "sgljit_core", "test", "door", "--device", "cpu", "--json", "-k", "own or gpu or results"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done)
    assert found["test_own.py::test_of_its_own"]["outcome"] == "passed"
    assert found["door.scale::results::cpu"]["outcome"] == "passed"
    if not torch.cuda.is_available():
        assert found["test_own.py::test_on_a_gpu"]["outcome"] == "skipped"
        assert "CUDA" in found["test_own.py::test_on_a_gpu"]["text"]


@pytest.mark.slow
def test_a_fault_ends_the_command_with_a_failure_and_the_fault(run):
    done = run(FAULTS["wrong_result"][1], "sgljit_core", "test", "door", "--device", "cpu", "-k", "results")
    assert done.returncode == 1
    assert "door.scale, results: x float32 [1, 16] strides [16, 1], out float32" in done.stdout
    assert "and the reference gives" in done.stdout


@pytest.mark.slow
def test_an_op_that_crashes_costs_one_check(run):
    ops = writing("out.copy_(2 * x)\nif x.shape[0] == 8: ctypes.string_at(0)")
    done = run(
        ops, "sgljit_core", "test", "door", "--device", "cpu", "--json", "-k", "results or opcheck or signatures"
    )
    assert done.returncode == 1
    found = results(done)
    assert found["door.scale::signatures::cpu"]["outcome"] == "passed"
    crash = found["door.scale::results::cpu"]
    assert crash["outcome"] == "failed"
    assert "the process ended with SIGSEGV, in the call door.scale: x float32 [8, 16] strides [16, 1]" in crash["text"]
    assert "Look at" not in crash["text"]
    assert "ops.py:" in crash["text"]
    assert found["door.scale::opcheck::cpu"]["outcome"] == "skipped"
    assert (
        "results failed, and this check calls the op on memory without guards"
        in (found["door.scale::opcheck::cpu"]["text"])
    )


@pytest.mark.slow
def test_what_the_declaration_shows_is_told_in_a_few_lines(run):
    done = run(REFUSED["writes_to_nothing"][1], "sgljit_core", "test", "door", "--device", "cpu")
    assert done.returncode not in (0, 5)
    assert REFUSED["writes_to_nothing"][0] in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) < 30, done.stdout


@pytest.mark.slow
def test_a_family_that_does_not_compile_is_told_once_in_a_few_lines(run):
    done = run(
        in_cpp(IN_PLACE_OF),
        *("sgljit_core", "test", "door", "--device", "cpu"),
        csrc={"scale.cpp": OF_ROWS_CPP.replace("columns = out.size(1);", "columns out.size(1);", 1)},
    )
    assert done.returncode == 1
    told, _, _ = done.stdout.partition("short test summary")  # which pytest writes in full in continuous integration
    assert told.count("error: ") == 1, done.stdout
    assert "const auto rows = out.size(0), columns out.size(1);" in told
    assert "1 failed" in done.stdout
    assert "left out" in done.stdout
    assert len((done.stdout + done.stderr).splitlines()) < 30, done.stdout


@pytest.mark.slow
def test_a_machine_without_a_compiler_is_told_once(run, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run(
        in_cpp(IN_PLACE_OF),
        *("sgljit_core", "test", "door", "--device", "cpu"),
        csrc={"scale.cpp": OF_ROWS_CPP},
        PATH=str(tmp_path / "empty"),
        SGLJIT_CXX="",
        CXX="",
    )
    assert done.returncode == 1
    told, _, _ = done.stdout.partition("short test summary")
    assert told.count("a C++ compiler not found") == 1, done.stdout
    assert "left out" in done.stdout
    assert len((done.stdout + done.stderr).splitlines()) < 30, done.stdout


@pytest.mark.slow
def test_no_trace_of_torch_is_printed(run):
    """A graph that differs from an eager call: torch logs how it compiled that."""
    ops = writing("out.copy_(2 * x + next(calls) % 2)", "calls = itertools.count()")
    done = run(ops, "sgljit_core", "test", "door", "--device", "cpu", "-k", "compile and scale")
    assert done.returncode == 1
    assert "torch.compile gives other bits" in done.stdout
    assert "DEBUG" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) < 30, done.stdout


@pytest.mark.slow
def test_what_was_compiled_for_cuda_and_not_run_is_said(run):
    done = run(RIGHT["writes"], "sgljit_core", "test", "door", "--device", "cpu", "-k", "dry_run")
    assert "door: CUDA: no kernel compiled, none run: no op asks for a kernel" in done.stdout


@pytest.mark.slow
def test_without_a_compiler_the_dry_run_is_skipped_and_says_why(run, tmp_path):
    (tmp_path / "empty").mkdir()
    command = ("sgljit_core", "test", "door", "--device", "cpu", "--json", "-k", "dry_run")
    done = run(RIGHT["writes"], *command, PATH=str(tmp_path / "empty"), SGLJIT_CXX="", CXX="")
    found = results(done)["door::dry_run"]
    assert found["outcome"] == "skipped", found
    assert "C++ compiler" in found["text"]


@pytest.mark.slow
def test_pytest_runs_the_checks_that_are_asked_for_beside_other_tests(run):
    options = ("-q", "-p", "no:cacheprovider", "-rs", "--sgljit-family", "door", "-k", "signatures or gpu")
    done = run(RIGHT["writes"], "pytest", *options, "--pyargs", "planted_door")
    assert done.returncode == 0, done.stdout
    assert "PytestUnknownMarkWarning" not in done.stdout
    assert "1 passed, 1 skipped" in done.stdout or torch.cuda.is_available()


def test_tests_of_an_adapters_wheel_that_need_a_gpu_are_skipped_without_one(run, tmp_path):
    (tmp_path / "sgljit_adapter").mkdir()
    (tmp_path / "sgljit_adapter" / "test_own.py").write_text(OWN_TESTS)
    done = run(RIGHT["writes"], "pytest", "-q", "-p", "no:cacheprovider", "sgljit_adapter")
    assert "1 passed, 1 skipped" in done.stdout or torch.cuda.is_available(), done.stdout


def test_the_markers_of_other_projects_are_theirs(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test_other.py").write_text(OWN_TESTS)
    done = run(RIGHT["writes"], "pytest", "-q", "-p", "no:cacheprovider", "elsewhere")
    assert "2 passed" in done.stdout


FOREIGN = """
def test_of_another_project(pytestconfig):
    assert pytestconfig.getini("filterwarnings") == []
    assert not [line for line in pytestconfig.getini("markers") if line.startswith(("gpu", "slow"))]
"""


def test_another_project_sees_nothing_but_the_options(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test_other.py").write_text(FOREIGN)
    assert "1 passed" in run(RIGHT["writes"], "pytest", "-q", "-p", "no:cacheprovider", "elsewhere").stdout


@pytest.mark.slow
def test_markers_and_options_are_those_of_other_plugins_where_no_family_is_checked(tmp_path):
    def printed(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()

    without = printed("-p", "no:sgljit", "--markers")
    assert any("parametrize" in line for line in without)
    assert printed("--markers") == without
    assert any(line.startswith("@pytest.mark.gpu: ") for line in printed("--sgljit-family", "norm", "--markers"))
    added = {line for line in printed("--help") if re.match(r"  -", line)}
    added -= set(printed("-p", "no:sgljit", "--help"))
    assert len(added) == 4
    assert all(line.startswith("  --sgljit-") for line in added)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name the families to test, or give --all"),
        (("norm", "--all"), "name the families to test, or give --all"),
        (("nrom",), "no installed plugin provides the kernel family 'nrom'"),
    ],
)
def test_wrong_use_of_the_command_is_refused(run, arguments, text):
    done = run(RIGHT["writes"], "sgljit_core", "test", *arguments)
    assert done.returncode != 0
    assert text in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        ("sgljit_core", "test", "door", "--device", "cuda"),
        pytest.param(("sgljit_core", "test", "door", "--device", "cuda", "--json"), marks=pytest.mark.slow),
        pytest.param(
            ("pytest", "-q", "-p", "no:cacheprovider", "--sgljit-family", "door", "--sgljit-device", "cuda", "."),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_device_that_is_named_and_is_not_there_is_an_error(run, command):
    done = run(RIGHT["writes"], *command)
    assert done.returncode not in (0, 5)
    assert "there is no device cuda to test on" in done.stderr
    assert "run it where there is a GPU, or name cpu instead" in done.stderr
    with pytest.raises(NoDeviceError, match="there is no device cuda to test on"):
        check_op("norm.rmsnorm", "cuda")


def test_an_op_that_is_not_there_is_named():
    with pytest.raises(errors.UnknownOpError, match="has no op 'rmsnrom'; did you mean 'rmsnorm'"):
        check_op("norm.rmsnrom")
    assert issubclass(Fault, AssertionError)


def test_a_fault_in_a_test_of_the_author_is_told_without_the_kit_s_own_frames(run, tmp_path):
    (tmp_path / "test_author.py").write_text(
        "from sgljit_tools.testing import check_op\n\ndef test_op():\n    check_op('door.scale', checks=['results'])\n"
    )
    done = run(FAULTS["wrong_result"][1], "pytest", "-q", "-p", "no:cacheprovider", "test_author.py")
    assert done.returncode == 1
    assert "check_op('door.scale'" in done.stdout
    assert "and the reference gives" in done.stdout
    assert "subject.py" not in done.stdout
    assert len(done.stdout.splitlines()) < 30, done.stdout
