"""``sgljit doctor`` and ``sgljit list``: what is here, what is wrong, and its remedy; nothing heavy is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import plugin_on_disk
import pytest

from sgljit_core import __version__
from sgljit_tools.cli.main import main

COUNTED = """
import json, sys
from sgljit_tools.cli.main import main
try:
    main(["doctor"])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def run(children, tmp_path):
    """Run the command line, with what is installed below ``tmp_path`` and a cache of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        return children.module("sgljit_core", *arguments, cwd=tmp_path, PYTHONPATH=path, **environment)

    return run


def test_the_doctor_shows_one_screen(run):
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 24
    for name in ("python", "versions", "GPUs", "c++", "nvrtc", "nvcc", "cache", "remote", "plugins", "adapters"):
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert f"sgljit-core {__version__}" in done.stdout
    assert "sgljit-norm 0." in done.stdout
    assert lines[-1] == "no problems"


def test_the_doctor_speaks_json(run):
    facts = json.loads(run("doctor", "--json", SGLJIT_REMOTE="https://user:sec@ret@example.com/x?sig=secret").stdout)
    assert facts["python"]["executable"]
    assert facts["versions"]["sgljit-core"] == __version__
    assert facts["versions"]["torch"]
    assert {"family", "distribution", "version"} == set(facts["plugins"][0])
    assert facts["cache"]["artifacts"] == facts["cache"]["damaged"] == 0
    assert facts["settings"]["SGLJIT_REMOTE"] == "https://***@example.com/x?***"
    assert Path(facts["docs"], "guides", "ship.md").is_file()
    assert facts["problems"] == []


def test_the_doctor_imports_neither_torch_nor_a_family(tmp_path):
    environment = {**os.environ, "SGLJIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = json.loads(done.stderr.splitlines()[-1])
    heavy = {"torch", "tvm_ffi", "numpy", "triton", "sgljit_norm", "sgljit_tools.recording", "sgljit_tools.cli.cache"}
    assert heavy.intersection(modules) == set()
    assert len(modules) < 400  # of which a bare Python has 30, and typer 100: 0.2 s
    assert "pydantic" not in modules  # with which typer reads options: 0.1 s


def test_a_setting_that_cannot_be_read_is_an_error(run):
    done = run("doctor", SGLJIT_JIT="maybe")
    assert done.returncode == 1
    assert "error: SGLJIT_JIT must be one of on, warn, error; got 'maybe'" in done.stderr


def test_a_missing_compiler_and_an_open_cache_are_problems(run, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    done = run("doctor", PATH=str(tmp_path), SGLJIT_CXX="", CXX="")
    assert done.returncode == 1
    assert "problem: a C++ compiler not found. Install a C++20 compiler" in done.stdout
    assert "chmod" in done.stdout
    assert "not trusted" in done.stdout


def test_amds_compiler_is_shown_where_it_is_and_a_problem_where_it_is_named_and_is_not(run, tmp_path):
    hipcc = tmp_path / "hipcc"
    hipcc.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho HIP version: 6.1.2\n")
    hipcc.chmod(0o755)
    found = f"hipcc       not asked for its version ({hipcc})"
    assert found in run("doctor", SGLJIT_HIPCC=str(hipcc)).stdout.splitlines()
    assert not (tmp_path / "asked").exists()  # it takes 0.3 s
    assert f"hipcc       6.1.2 ({hipcc})" in run("report", SGLJIT_HIPCC=str(hipcc)).stdout.splitlines()
    done = run("doctor", SGLJIT_HIPCC=str(tmp_path / "none"))
    assert "problem: hipcc not found. " in done.stdout
    assert done.returncode == 1
    assert not any(line.startswith("hipcc") for line in done.stdout.splitlines())


def test_the_version_is_printed(run):
    assert run("--version").returncode in (0, 2)  # without a command, `python -m sgljit_core` writes .clangd
    done = subprocess.run(
        [sys.executable, "-c", "from sgljit_tools.cli.main import main; main(['--version'])"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(f"sgljit-core {__version__}, sgljit-tools ")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (":FAMLY", "names FAMLY, which "),
        (":FAMILY", None),
    ],
)
def test_an_entry_point_to_a_missing_attribute_is_found_without_an_import(run, tmp_path, attribute, text):
    package = plugin_on_disk.install(tmp_path, "acme-broken", "broken", attribute=attribute)
    (package / "plugin.py").write_text((package / "plugin.py").read_text() + "\nraise SystemExit('imported')\n")
    done = run("list", "--strict", "--json")
    found = [one for one in json.loads(done.stdout)["problems"] if "acme-broken" in one]
    assert done.returncode == (0 if text is None else 1), done.stdout
    assert [text in one for one in found] == ([] if text is None else [True])


def test_an_entry_point_to_a_missing_module_is_found(run, tmp_path):
    package = plugin_on_disk.install(tmp_path, "acme-gone", "gone")
    (package / "plugin.py").unlink()
    done = run("list")
    assert done.returncode == 0
    assert "its entry point gone = 'acme_gone.plugin' names a module that is not there" in done.stdout
    assert run("list", "--strict").returncode == 1


def test_a_conflict_is_an_error_where_it_is_asked_for(run, tmp_path):
    plugin_on_disk.install(tmp_path, "acme-norm", "norm")
    assert run("list").returncode == 0
    done = run("list", "--strict")
    assert done.returncode == 1
    assert "family 'norm' is claimed by" in done.stdout


def test_a_name_that_nothing_has_is_said(run):
    done = run("list", SGLJIT_PLUGINS="sgljit-norm,typo")
    assert "SGLJIT_PLUGINS allows 'typo', and no installed distribution has that name" in done.stdout
    assert "'sgljit-norm'" not in done.stdout


def test_the_ops_of_a_family_are_listed_with_their_signatures(run):
    done = run("list", "norm")
    assert (
        "rmsnorm(input: Tensor, weight: Tensor, out: Tensor | None = None, eps: float = 1e-06) -> None" in done.stdout
    )
    found = json.loads(run("list", "norm", "--json").stdout)
    assert {"op", "signature", "place"} == set(found[0])
    for command in (("list",), ("cache", "build"), ("cache", "why")):
        assert "no installed plugin provides the kernel family 'nrom'" in run(*command, "nrom").stderr


def test_a_doctor_that_is_interrupted_ends_without_a_traceback(monkeypatch, capsys):
    def interrupt(**_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sgljit_tools.cli.doctor.report", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert (ended.value.code, *capsys.readouterr()) == (130, "", "")
