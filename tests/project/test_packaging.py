"""What is in the distributions is what is in the repository, and installed without it they work."""

from __future__ import annotations

import re
import subprocess
import textwrap
from importlib import metadata
from pathlib import Path

import isolated
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

OTHERS = [name for name in isolated.PROJECTS if name != "sgljit-core"]
# The quick tests build these, one of each kind.
QUICK = {"sgljit-core", "sgljit-tools", "sgljit-engines", "sgljit-hicache"}
WITH_TESTS = [name for name in OTHERS if any((isolated.ROOT / isolated.PROJECTS[name]).glob("*/tests"))]


def each(names):
    return pytest.mark.parametrize(
        "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]
    )


def tree(root: Path, *directories: str) -> set[str]:
    """Every file below some directories, relative to ``root``."""
    files = (path for directory in directories for path in (root / directory).rglob("*"))
    return {path.relative_to(root).as_posix() for path in files if path.is_file() and "__pycache__" not in path.parts}


def package_of(project: Path) -> str:
    """The import package of a plugin: the one directory with an ``__init__.py``."""
    (init,) = project.glob("*/__init__.py")
    return init.parent.name


def test_the_core_wheel_has_the_package_and_the_headers(distribution):
    core = distribution("sgljit-core")
    headers = {f"sgljit_core/{name}" for name in tree(core.project, "include")}
    assert any(name.endswith(".cuh") for name in headers)
    info = {name for name in core.wheel_files if ".dist-info/" in name}
    pages = {f"sgljit_core/{name}" for name in tree(core.project, "docs") if name.endswith((".md", ".svg"))}
    assert "sgljit_core/docs/guides/ship.md" in pages
    assert core.wheel_files - info == tree(core.project, "sgljit_core") | headers | pages
    assert {name.partition("/")[2] for name in info} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "licenses/LICENSE",
    }


@each(isolated.PROJECTS)
def test_a_description_has_no_link_that_an_index_cannot_follow(distribution, name):
    """An index shows it without the repository. A link into the repository is absolute, or gone."""
    metadata = distribution(name).metadata
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    addresses = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    own = addresses.get("Source", "")
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert [link for link in links if own and "/blob/" in link and not link.startswith(own)] == []


def test_all_distributions_have_the_same_addresses():
    """The core's, such as Source and Changelog, below [project.urls]: whoever has one distribution finds the others."""
    addresses = {}
    for name, place in isolated.PROJECTS.items():
        text = (isolated.ROOT / place / "pyproject.toml").read_text(encoding="utf-8")
        section = re.search(r"^\[project\.urls\]\n((?:.+\n)*)", text, re.MULTILINE)
        addresses[name] = section[1] if section else ""
    assert {name for name, own in addresses.items() if own != addresses["sgljit-core"]} == set()


def test_the_cores_description_has_the_words_of_its_links(distribution):
    description = distribution("sgljit-core").metadata.get_payload()
    assert "How fast it is has all of them." in description
    assert "| bench/results/layer.md |" in description
    assert not re.search(r"^!", description, re.MULTILINE)  # an image whose file an index does not have


def test_the_core_sdist_has_what_the_wheel_is_built_from(distribution):
    core = distribution("sgljit-core")
    documents = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    sources = tree(core.project, "sgljit_core", "include", "docs")
    assert core.sdist_files - {".gitignore"} == documents | sources


def test_texts_that_name_a_page_say_where_it_is():
    """Help texts and templates are read without the repository: `sgljit doctor` shows where the docs are."""
    pages = {path.name for path in (isolated.ROOT / "docs").rglob("*.md")}
    cli = isolated.ROOT / "tools" / "sgljit-tools" / "sgljit_tools" / "cli"
    texts = {path: path.read_text(encoding="utf-8") for path in cli.rglob("*") if path.suffix in (".py", ".in")}
    naming = {path: names for path, text in texts.items() if (names := set(re.findall(r"\b[a-z]+\.md\b", text)))}
    assert len(naming) >= 4
    assert all(names <= pages for names in naming.values()), naming
    assert [
        path
        for path in naming
        if "`sgljit doctor` shows where the docs are" not in texts[path] or "docs/" in texts[path]
    ] == []


@each(OTHERS)
def test_the_files_of_another_distribution_are_its_whole_package(distribution, name):
    other = distribution(name)
    package = package_of(other.project)
    sources = tree(other.project, package)
    has_csrc = any(source.startswith(f"{package}/csrc/") for source in sources)
    assert has_csrc == (other.project.parent.name == "plugins")
    assert {file for file in other.wheel_files if ".dist-info/" not in file} == sources
    documents = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert other.sdist_files - {".gitignore"} == documents | sources


@each(isolated.PROJECTS)
def test_each_distribution_has_a_version_and_a_changelog_of_its_own(distribution, name):
    built = distribution(name)
    changelog = (built.project / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d[\w.]*)", changelog, re.MULTILINE)
    assert newest, f"{name}: no release in its CHANGELOG.md"
    assert newest[1] == built.metadata["Version"], name


@each(OTHERS)
def test_each_takes_later_releases_of_the_core(distribution, name):
    running = Version(distribution("sgljit-core").metadata["Version"])
    later = Version(f"{running.major}.{running.minor}.{running.micro + 1}")
    (requirement,) = (r for r in distribution(name).requirements if r.name == "sgljit-core" and not r.marker)
    assert running in requirement.specifier
    assert later in requirement.specifier
    assert Version(f"{running.major + 1}.0") not in requirement.specifier


@pytest.fixture(scope="module")
def serving(distribution, tmp_path_factory) -> isolated.Environment:
    """What `pip install sgljit-core sgljit-hicache` brings, as an engine's container may have it."""
    wheels = [distribution("sgljit-core"), distribution("sgljit-hicache")]
    environment = isolated.Environment(tmp_path_factory.mktemp("serving") / "environment", wheels)
    environment.install(*wheels)
    return environment


@pytest.mark.slow
def test_the_core_and_a_family_run_without_tools_and_terminal_libraries(serving):
    code = """
        import importlib.util, sys, torch
        from sgljit_core import load_jit, ops

        pool = [torch.randn(8, 64) for _ in range(4)]
        src, dst = torch.tensor([1, 5]), torch.tensor([2, 7])
        ops["hicache"].transfer_hicache_one_layer(pool[0], pool[1], dst, pool[2], pool[3], src)
        assert torch.equal(pool[0][dst], pool[2][src]) and torch.equal(pool[1][dst], pool[3][src])
        module = load_jit("one", cpp_sources="int one() { return 1; }", cpp_wrappers=[("one", "one")])
        assert module.one() == 1
        for name in ("sgljit_tools", "sgljit_engines", "typer", "rich", "platformdirs"):
            assert importlib.util.find_spec(name) is None, name
    """
    serving.run_code(textwrap.dedent(code))


@pytest.mark.slow
def test_without_the_tools_the_core_says_in_one_line_where_the_command_is(serving):
    run = [serving.python, "-m", "sgljit_core", "list"]
    done = subprocess.run(run, cwd=serving.home, env=serving.variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'error: the sgljit command comes with: pip install "sgljit-core[tools]"\n'


def test_the_extras_of_the_core_bring_what_they_say(distribution):
    def brought(extra: str) -> dict[str, set[str]]:
        found = distribution("sgljit-core").requirements
        return {r.name: r.extras for r in found if r.marker and r.marker.evaluate({"extra": extra})}

    assert brought("tools") == {"sgljit-tools": set()}
    assert brought("nvrtc") == {"cuda-toolkit": {"cudart", "nvrtc"}}
    assert brought("cuda") == {"cuda-toolkit": {"cccl", "cudart", "nvcc", "nvrtc"}}
    needed = {r.name for r in distribution("sgljit-core").requirements if not r.marker}
    assert needed == {"apache-tvm-ffi", "cuda-pathfinder", "importlib-metadata", "packaging", "pluggy", "torch"}


def test_what_has_left_python_3_10_is_not_asked_for_there(distribution):
    found = distribution("sgljit-core").requirements
    on_3_10 = {r.name for r in found if r.marker and r.marker.evaluate({"extra": "dev", "python_version": "3.10"})}
    assert {"mypy", "pytest"} <= on_3_10
    assert on_3_10.isdisjoint({"furo", "kernels", "myst-parser", "sphinx", "transformers"})


def test_a_pin_of_what_has_left_a_python_does_not_hold_there():
    """No release meets such a pin, and `make setup` fails. Tested for the packages that are installed here."""
    lines = (isolated.ROOT / "constraints.txt").read_text().splitlines()
    known = {one.name.lower(): one.metadata.get("Requires-Python") for one in metadata.distributions()}
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = [pin for pin in pins if pin.name in known]
    assert len(here) > 100
    for minor in range(10, 15):
        held = [pin for pin in here if not pin.marker or pin.marker.evaluate({"python_version": f"3.{minor}"})]
        left = [pin.name for pin in held if f"3.{minor}.99" not in SpecifierSet(known[pin.name] or "")]
        assert left == [], f"constraints.txt pins what does not run on Python 3.{minor}"


@pytest.fixture(scope="module")
def installed(distribution, run_directory) -> isolated.Environment:
    """An environment with the wheels of the core and of all plugins, and what they require: one for the run."""
    wheels = [distribution(name) for name in isolated.PROJECTS]
    extra = ["pytest", *isolated.cuda_compilers()]
    directory = run_directory / "installed"
    with isolated.locked(run_directory / "installed.lock"):
        was_there = directory.exists()
        environment = isolated.Environment(directory, wheels, extra=extra)
        if not was_there:
            environment.install(*wheels)
    return environment


@pytest.mark.slow
def test_installed_wheels_list_families_without_torch(installed, tmp_path):
    code = """
        import sys
        import sgljit_core
        assert "norm" in list(sgljit_core.ops)
        assert not {"torch", "tvm_ffi", "sgljit_norm"} & sys.modules.keys()
    """
    alone = {**installed.variables, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    isolated.run(installed.python, "-W", "error", "-c", textwrap.dedent(code), cwd=tmp_path, env=alone)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_installed_wheels_run_rmsnorm(installed):
    code = """
        import sgljit_core, sgljit_norm, torch

        torch.manual_seed(0)
        x, weight = torch.randn(5, 256), torch.randn(256)
        expected = torch.nn.functional.rms_norm(x.double(), (256,), weight.double(), 1e-6)
        out = torch.empty_like(x)
        sgljit_core.ops["norm"].rmsnorm(x, weight, out=out, eps=1e-6)
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 1e-6, error
        print(sgljit_core.__file__, sgljit_norm.__file__)
    """
    printed = installed.run_code(textwrap.dedent(code))
    assert printed.count(str(installed.site)) == 2, printed
    assert str(isolated.ROOT) not in printed
    assert list((installed.home / ".cache").rglob("*.so"))


# From the checkout all tests run. What may be wrong with a wheel's own is a file or a setting of pytest that is not in
# it: each file of tests is imported, and its first functions run, each with one set of its parameters.
SHARE = """
from collections import Counter

FUNCTIONS = 2


def pytest_collection_modifyitems(config, items):
    taken, functions = [], Counter()
    for item in items:
        if item.get_closest_marker("gpu") or item.get_closest_marker("slow") or item.get_closest_marker("engine"):
            continue
        functions[item.path, item.function] += 1
        is_first = functions[item.path, item.function] == 1
        if is_first and sum(path == item.path for path, _ in functions) <= FUNCTIONS:
            taken.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = taken
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_TESTS)
def test_installed_wheels_pass_a_share_of_their_own_tests(installed, distribution, private_cache, name, tmp_path):
    """A wheel that lacks a file fails them. The cache is that of the checkout, which has most kernels."""
    package = package_of(distribution(name).project)
    (tmp_path / "share.py").write_text(SHARE)
    chosen = ("-p", "share", "-p", "no:cacheprovider", "--pyargs", package)
    variables = {**installed.variables, "SGLJIT_CACHE_DIR": str(private_cache), "PYTHONPATH": str(tmp_path)}
    printed = isolated.run(installed.python, "-m", "pytest", *chosen, cwd=installed.home, env=variables)
    assert re.search(r"\d+ passed", printed), printed
    assert "PytestUnknownMarkWarning" not in printed, printed
