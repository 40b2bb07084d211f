"""A stranger's plugin: built elsewhere, installed beside the core, found, run, and gone when uninstalled."""

from __future__ import annotations

import textwrap

import isolated
import pytest

EXAMPLE = isolated.ROOT / "examples" / "sgljit-add-constant"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> isolated.Built:
    copy = isolated.copy_sources(EXAMPLE, tmp_path_factory.mktemp("elsewhere"))
    return isolated.build(copy, tmp_path_factory.mktemp("built"))


def test_the_wheel_has_all_its_sources(plugin):
    package = plugin.project / "sgljit_add_constant"
    sources = {path.relative_to(plugin.project).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {f"sgljit_add_constant/csrc/add_constant.{suffix}" for suffix in ("cpp", "cu", "cuh")} <= sources
    assert {name for name in plugin.wheel_files if ".dist-info/" not in name} == sources
    assert sources <= plugin.sdist_files


def test_installed_it_is_found_and_runs_and_uninstalled_it_is_gone(distribution, plugin, tmp_path):
    core = distribution("sgljit-core")
    environment = isolated.Environment(tmp_path / "environment", [core, plugin], extra=["pytest"])
    environment.install(core)
    families = "import sgljit_core; print(list(sgljit_core.ops))"
    assert environment.run_code(families) == "[]\n"

    environment.install(plugin)
    assert environment.run_code(families) == "['add_constant']\n"
    use = """
        import sgljit_core, torch
        print(sgljit_core.ops["add_constant"].add_constant(torch.arange(3, dtype=torch.int32), 40).tolist())
    """
    assert environment.run_code(textwrap.dedent(use)) == "[40, 41, 42]\n"

    # Its own tests, as its user would run them.
    options = ("-c", plugin.project / "pyproject.toml", "--rootdir", environment.home, "-p", "no:cacheprovider")
    tests = environment.run(environment.python, "-m", "pytest", *options, "--pyargs", "sgljit_add_constant")
    assert " passed" in tests
    assert " failed" not in tests

    environment.pip("uninstall", "--yes", "sgljit-add-constant")
    assert environment.run_code(families) == "[]\n"
    missing = """
        import sgljit_core
        try:
            sgljit_core.ops["add_constant"]
        except KeyError as error:
            print(error)
    """
    printed = environment.run_code(textwrap.dedent(missing))
    assert "add_constant" in printed
    assert "pip install" in printed
