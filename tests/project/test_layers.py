"""The layers of docs/architecture.md are the layers of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sgljit_core"
FREE = {"__init__", "__main__", "_version"}  # the lazy package and its version stand outside the stack


def documented() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def imported(module: Path) -> set[str]:
    """The modules of the core that a module imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sgljit_core":
            names |= {alias.name for alias in node.names}
    return names - FREE


def test_every_module_has_a_place_in_the_documented_order():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - FREE
    assert modules == set(documented())


@pytest.mark.parametrize("module", documented())
def test_a_module_imports_only_what_stands_above_it(module):
    order = documented()
    below = [name for name in imported(PACKAGE / f"{module}.py") if order.index(name) >= order.index(module)]
    assert not below, f"{module} imports {below}, which stand below it in docs/architecture.md"


def test_only_config_reads_the_environment():
    readers = [p.stem for p in PACKAGE.glob("*.py") if re.search(r"os\.(environ|getenv)", _code(p))]
    assert readers == ["config"]


def _code(path: Path) -> str:
    """The module without docstrings and comments."""
    return ast.unparse(
        ast.parse("\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("``")))
    )
