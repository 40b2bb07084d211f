"""Which room imports which? The rooms of architecture.md, the imports of the code, and a picture of the core's.

A module of the core has the name that it has there, such as ``cache.store``; others begin with their package.

``python docs/generated/rooms.py`` writes the picture anew.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PICTURE = DOCS / "rooms.svg"
ROOT = DOCS.parent
PACKAGES = [
    "sgljit_core",
    "engines/sgljit-engines/sgljit_engines",
    "tools/sgljit-tools/sgljit_tools",
    "tools/sgljit-remote/sgljit_remote",
    "tools/sgljit-triton/sgljit_triton",
]
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
GROUND = "."  # the modules beside the rooms, which all rooms use
FREE = {"__init__.py", "__main__.py", "_version.py"}  # a package itself stands outside its rooms

_WIDTH, _HEIGHT, _COLUMN, _ROW, _MARGIN = 240, 68, 260, 100, 20  # of a box, from box to box, around them all
_LETTERS = 28  # of a line in a box: the widest of the usual fonts takes 7.6 pixels for one


@functools.cache
def rooms() -> list[str]:
    """The documented rooms, the lowest first."""
    return [GROUND, *(name.replace("/", ".") for name in re.findall(r"^### `([\w/]+)/`", PAGE, re.MULTILINE))]


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its name."""
    found = {}
    for package in (ROOT / place for place in PACKAGES):
        for path in package.rglob("*.py"):
            is_beside = {"tests", "bench"} & {*path.relative_to(package).parts}
            if not is_beside and (path.parent != package or path.name not in FREE):
                found[_short(*path.relative_to(package.parent).with_suffix("").parts)] = path
    return found


def _short(*parts: str) -> str:
    return ".".join(parts).removeprefix("sgljit_core.").removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room of a module."""
    return max((room for room in rooms() if f"{module}.".startswith(f"{room}.")), key=len, default=GROUND)


def imported(name: str, path: Path, *, types: bool = True) -> set[str]:
    """The modules of the project that a module imports, at its top, inside a function or for types."""
    known = modules()
    home = next(ROOT / place for place in PACKAGES if path.is_relative_to(ROOT / place))
    package = path.parent.relative_to(home.parent).parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set() if types else {id(n) for guard in ast.walk(tree) if _is_for_types(guard) for n in ast.walk(guard)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in skipped:
            continue
        base = package[: len(package) - node.level + 1] if node.level else ()
        place = (*base, *(node.module or "").split(".")) if node.module else base
        full = [_short(*place, alias.name) for alias in node.names]
        found |= {one if one in known else one.rpartition(".")[0] for one in full}
    return (found & known.keys()) - {name}


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports() -> dict[str, set[str]]:
    """The rooms that each room of the core imports, without those that one of them imports as well."""
    direct: dict[str, set[str]] = {room: set() for room in rooms() if not room.startswith("sgljit_")}
    for name, path in modules().items():
        if (room := room_of(name)) in direct:
            direct[room] |= {room_of(other) for other in imported(name, path)} - {room}
    below: dict[str, set[str]] = {}
    for room in direct:  # the rooms that it imports come before it
        below[room] = direct[room].union(*(below[other] for other in direct[room]))
    return {room: {one for one in of if not any(one in below[other] for other in of)} for room, of in direct.items()}


def _titles() -> dict[str, str]:
    """The purpose of each room, from its heading."""
    found = re.findall(r"^### (?:`([\w/]+)/`|Ground): ([^;\n]+)", PAGE, re.MULTILINE)
    return {room.replace("/", ".") or GROUND: title.replace("`", "") for room, title in found}


def _places(edges: dict[str, set[str]]) -> dict[str, tuple[float, int]]:
    """The column and the level of each box. Level by level, a box stands below the middle of those that import it."""
    level: dict[str, int] = {}
    for room in edges:
        level[room] = 1 + max((level[other] for other in edges[room]), default=-1)
    top = max(level.values())
    places: dict[str, tuple[float, int]] = {}
    for number in range(top, -1, -1):
        row = [room for room in edges if level[room] == number]
        wanted = {room: [places[other][0] for other in places if room in edges[other]] for room in row}
        aim = {room: sum(columns) / len(columns) if columns else 1.0 for room, columns in wanted.items()}
        row.sort(key=lambda room: aim[room])
        for index, room in enumerate(row):
            places[room] = (index - (len(row) - 1) / 2, number)
        # An edge that passes this row must not run through its boxes: they move to the other side.
        passing = [one for one in places for to in edges[one] if level[one] > number > level.get(to, number)]
        if passing and len(row) == 1:
            places[row[0]] = (-0.5, number)
    return places


def picture() -> str:
    """The picture, as SVG: every room stands above those that it imports."""
    edges, titles = imports(), _titles()
    places = _places(edges)
    left = min(column for column, _ in places.values())
    right = max(column for column, _ in places.values())
    top = max(level for _, level in places.values())
    width = round((right - left) * _COLUMN + _WIDTH + 2 * _MARGIN)
    height = top * _ROW + _HEIGHT + 2 * _MARGIN

    def corner(room: str) -> tuple[float, float]:
        column, level = places[room]
        return _MARGIN + (column - left) * _COLUMN, _MARGIN + (top - level) * _ROW

    def lines() -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="The rooms of sgljit_core, each above those that it imports">'
        )
        yield (
            "<style>text { font-family: sans-serif; font-size: 12px; fill: #3b4252 } .name { font-weight: bold; "
            "font-size: 14px; fill: #1a1f2b } .room { fill: #eef3fb; stroke: #5b7db8 } .edge { stroke: #7a869c; "
            "stroke-width: 1.5; fill: none }</style>"
        )
        yield f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
        for room, others in edges.items():
            for other in sorted(others, key=rooms().index):
                (x, y), (to_x, to_y) = corner(room), corner(other)
                x, y, to_x = x + _WIDTH / 2, y + _HEIGHT, to_x + _WIDTH / 2
                bend = (_ROW - _HEIGHT) * 0.8
                yield (
                    f'<path class="edge" d="M {x:g} {y:g} C {x:g} {y + bend:g} {to_x:g} {to_y - bend:g} '
                    f'{to_x:g} {to_y:g}"/>'
                )
        for room in edges:
            x, y = corner(room)
            name, title = room, titles[room]
            if room == GROUND:
                name, title = "ground", f"errors, config, paths, log, lazy: {title}"
            yield f'<rect class="room" x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
            yield f'<text class="name" x="{x + 10:g}" y="{y + 20:g}">{name}</text>'
            for index, line in enumerate(textwrap.wrap(title, _LETTERS, max_lines=3)):
                yield f'<text x="{x + 10:g}" y="{y + 36 + 13 * index:g}">{escape(line)}</text>'
        yield "</svg>\n"

    return "\n".join(lines())


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
