"""The distributions take of each other the names that docs/compatibility.md promises, and no others."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import isolated
import pytest

PAGE = (isolated.ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
TABLES = PAGE.partition("\n## Python names\n")[2].partition("\n## ")[0].split("\n### For the tools\n")
PACKAGES = {"sgljit_core", "sgljit_engines", "sgljit_tools"}
TOOLS = {"sgljit-engines", "sgljit-remote", "sgljit-tools", "sgljit-triton"}
EXAMPLES = sorted(path.parent for path in (isolated.ROOT / "examples").glob("*/pyproject.toml"))
PROJECTS = [*(isolated.ROOT / path for name, path in isolated.PROJECTS.items() if name != "sgljit-core"), *EXAMPLES]


def promised(table: str) -> set[str]:
    """The names in a table, such as ``sgljit_core.load_jit``."""
    found = set()
    for module, cell in re.findall(r"^\| `([\w.]+)` \| (.+?) \|", table, re.MULTILINE):
        names = importlib.import_module(module).__all__ if cell == "all of `__all__`" else re.findall(r"`(\w+)`", cell)
        found |= {f"{module}.{name}" for name in names}
    return found


FOR_ALL, FOR_TOOLS = map(promised, TABLES)


def taken(text: str, own: str = "") -> set[str]:
    """The names of the project's packages, but for its ``own``, that a module imports or reaches through a module."""
    found, modules = set(), {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _is_of(alias.name, PACKAGES - {own})}
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_of(node.module, PACKAGES - {own}):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name not in FOR_ALL and _is_module(name):
                    modules[alias.asname or alias.name] = name
                else:
                    found.add(name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add(f"{modules[node.value.id]}.{node.attr}")
    return found


def _is_of(module: str, packages: set[str]) -> bool:
    return module.partition(".")[0] in packages


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be in is no package
        return False


def sources(project: Path) -> Iterator[tuple[str, str]]:
    """The package and the text of each module of a distribution, but for its tests, which may look behind names."""
    for path in sorted(project.glob("*/**/*.py")):
        package, *others = path.relative_to(project).parts
        if "tests" not in others:
            yield package, path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from sgljit_core.cache import store", "sgljit_core.cache.store.write"),
        ("from sgljit_core.cache import store as s", "sgljit_core.cache.store.write"),
        ("from sgljit_core.cache.store import write", "sgljit_core.cache.store.write"),
        ("def f():\n    from sgljit_core import load_jit", "sgljit_core.load_jit"),
        ("import sgljit_core.cache.store", "sgljit_core.cache.store"),
    ],
)
def test_a_name_that_is_taken_is_noticed(text, name):
    use = re.search(r"(?:as |import )(\w+)$", text)[1] if " store" in text else "other"
    assert taken(f"{text}\n{use}.write()") == {name}
    assert taken(text, own="sgljit_core") == set()


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_distribution_takes_promised_names_alone(project):
    allowed = FOR_ALL | FOR_TOOLS if project.name in TOOLS else FOR_ALL
    used = {name for package, text in sources(project) for name in taken(text, own=package)}
    assert used - allowed == set()
    assert used or project.name == "sgljit-tools"


def test_nothing_is_promised_to_the_tools_that_they_do_not_take():
    projects = [project for project in PROJECTS if project.name in TOOLS]
    used = {name for project in projects for package, text in sources(project) for name in taken(text, own=package)}
    assert FOR_TOOLS - used == set()


@pytest.mark.parametrize("name", sorted(FOR_ALL | FOR_TOOLS))
def test_a_promised_name_is_there(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("project", [project for project in PROJECTS if project.parent.name == "plugins"], ids=str)
def test_a_family_needs_the_engines_distribution_for_types_alone(project):
    for package, text in sources(project):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
        assert not any(name.startswith("sgljit_engines") for name in taken(ast.unparse(tree), own=package))
