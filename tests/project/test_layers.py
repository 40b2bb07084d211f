"""The rooms of docs/architecture.md are the rooms of the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from generated import rooms as code
from generated.rooms import PAGE, imported, modules, room_of, rooms

COMMANDS = "sgljit_tools.cli"


def test_every_module_stands_on_the_page_in_its_room():
    documented = {}
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        room = re.match(r"`([\w/]+)/`", section)
        prefix = f"{room[1]}.".replace("/", ".") if room else ""
        documented |= {f"{prefix}{name}": True for name in re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)}
    assert documented.keys() == modules().keys() - set(rooms())


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_no_room_above_its_own(module):
    order = rooms()
    above = [
        other
        for other in imported(module, modules()[module])
        if order.index(room_of(other)) > order.index(room_of(module))
    ]
    assert not above, f"{module} imports {above}; docs/architecture.md has the order of the rooms"


def lines_of(package: Path) -> Counter[str]:
    """The lines of a package, by the module or package inside of it."""
    lines = Counter[str]()
    for path in package.rglob("*.py"):
        lines[path.relative_to(package).parts[0]] += len(path.read_text().splitlines())
    return lines


def test_the_core_stays_small():
    lines = lines_of(code.ROOT / "sgljit_core")
    assert lines.total() <= 7850
    assert max(lines.values()) <= 1300, lines


def test_the_three_distributions_stay_small():
    packages = ("sgljit_core", "tools/sgljit-tools/sgljit_tools", "engines/sgljit-engines/sgljit_engines")
    lines = {package: lines_of(code.ROOT / package).total() for package in packages}
    assert min(lines.values()) > 0
    # 12,000, and what came later: the comparison of ops with engines, the kit and doctor of a release, what
    # observes a process on a bad day, compilers for AMD, and what adapters share: trials with few rows and many, counts
    # of the engine's own calls, ops that are used only by name, what is said when an engine's log is set up, and a hook
    # for exporters, which hears of misses, refusals and failures.
    assert sum(lines.values()) <= 13852, lines


def test_the_picture_shows_the_imports_of_the_code():
    assert code.PICTURE.read_text() == code.picture(), "write it anew: python docs/generated/rooms.py"


def test_inside_the_rooms_nothing_goes_in_a_circle():
    graph = {name: imported(name, path, types=False) for name, path in modules().items()}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_only_the_command_line_imports_other_rooms_of_the_tools():
    """But for what records calls, what judges results, which the conformance kit asks, too, and warm-ups by a model."""
    outside = [room for room in rooms() if room.startswith("sgljit_") and room != "sgljit_tools"]
    assert len(outside) > 3
    others = {
        name: other
        for name, path in modules().items()
        for other in imported(name, path)
        if room_of(other) in outside
        and room_of(name) not in (room_of(other), COMMANDS)
        and not name.endswith(".cli")
        and room_of(other) != "sgljit_tools.recording"
        and other != "sgljit_engines.agreement"
        and name != "sgljit_remote.ranks"
    }
    assert not others


def test_only_config_reads_the_environment():
    readers = [name for name, path in modules().items() if re.search(r"os\.(environ|getenv)", _code(path))]
    assert readers == ["config", "sgljit_engines.adapter", "sgljit_tools.environment", "sgljit_remote.config"]


def _code(path: Path) -> str:
    """The module without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.unparse(tree)
