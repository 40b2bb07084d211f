"""The rooms of docs/architecture.md are the rooms of the code."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sgljit_core"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
GROUND = "."  # the modules beside the rooms, which all rooms use
ALLOWED = {"engines": ["cli"], "testing": ["cli"]}  # sgljit prepare; sgljit test and wheel
FREE = {"__init__", "__main__", "_version"}  # the lazy package hands out names of all rooms


def rooms() -> list[str]:
    """The documented rooms, the lowest first."""
    return [GROUND, *re.findall(r"^### `(\w+)/`", PAGE, re.MULTILINE)]


def modules() -> dict[str, Path]:
    """Every module by its name, such as ``cache.store``."""
    found = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name not in FREE}


def room_of(module: str) -> str:
    return module.split(".")[0] if module.split(".")[0] in rooms() else GROUND


def imported(name: str, path: Path, *, types: bool = True) -> set[str]:
    """The modules of the core that a module imports, at its top, inside a function or for types."""
    known = modules()
    package = ["sgljit_core", *name.split(".")]
    package = package if path.name == "__init__.py" else package[:-1]
    tree = ast.parse(path.read_text())
    skipped = set() if types else {id(n) for guard in ast.walk(tree) if is_for_types(guard) for n in ast.walk(guard)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in skipped:
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        place = [*base, *(node.module or "").split(".")] if node.module else base
        if place[:1] == ["sgljit_core"]:
            full = [".".join([*place[1:], alias.name]) for alias in node.names]
            found |= {one if one in known else one.rpartition(".")[0] for one in full}
    return (found & known.keys()) - {name}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def test_every_module_stands_on_the_page_in_its_room():
    documented = {}
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        room = re.match(r"`(\w+)/`", section)
        prefix = f"{room[1]}." if room else ""
        documented |= {f"{prefix}{name}": True for name in re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)}
    assert documented.keys() == modules().keys() - set(rooms()) - {"cli.cache"}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_no_room_above_its_own(module):
    order = rooms()
    above = [
        other
        for other in imported(module, modules()[module])
        if order.index(room_of(other)) > order.index(room_of(module))
    ]
    assert not above, f"{module} imports {above}; docs/architecture.md has the order of the rooms"


def test_inside_the_rooms_nothing_goes_in_a_circle():
    graph = {name: imported(name, path, types=False) for name, path in modules().items()}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", ["engines", "benchmark", "testing"])
def test_nothing_imports_the_rooms_that_others_use(room):
    others = {
        name
        for name, path in modules().items()
        if room_of(name) not in (room, *ALLOWED.get(room, ()))
        for other in imported(name, path)
        if room_of(other) == room
    }
    assert not others


def test_only_config_reads_the_environment():
    readers = [name for name, path in modules().items() if re.search(r"os\.(environ|getenv)", _code(path))]
    assert readers == ["config"]


def _code(path: Path) -> str:
    """The module without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.unparse(tree)
