"""Each guarantee of docs/architecture.md has a test that is there."""

from __future__ import annotations

import ast
import re

import isolated
import pytest

PAGE = (isolated.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Guarantees\n")[2].partition("\n## ")[0]
ROWS = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][1:]


def test_each_line_says_what_and_for_whom_and_names_one_test():
    assert len(ROWS) > 30
    for what, who, test in ROWS:
        assert what
        assert who
        assert re.fullmatch(r"`[\w/-]+\.py::\w+`", test), test


@pytest.mark.parametrize("name", [test.strip("`") for *_, test in ROWS])
def test_the_test_of_a_guarantee_is_there(name):
    file, _, function = name.partition("::")
    path = isolated.ROOT / file if file.startswith(("plugins/", "tools/")) else isolated.ROOT / "tests" / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert function in tests
