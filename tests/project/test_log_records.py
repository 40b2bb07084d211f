"""Each event of a log record stands in the table of docs/cache.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from isolated import ROOT

PLACES = ("sgljit_core", "tools/*/sgljit_*")


def events(text: str) -> Iterator[str]:
    """The events that a program passes to the functions of the log, by their names."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        called = node.func.attr
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "log" and called in ("log", "once"):
            event = node.args[called == "log"]  # behind the level
            if isinstance(event, ast.Constant):
                yield event.value


def test_an_event_is_found_behind_its_level():
    program = 'log.log(logging.INFO, "one", text)\nlog.once("two", about, text)\nlog.once(event)\nlog.is_on()'
    assert [*events(program)] == ["one", "two"]


def test_every_event_is_in_the_table():
    files = [file for place in PLACES for file in ROOT.glob(f"{place}/**/*.py") if "tests" not in file.parts]
    used = {event for file in files for event in events(file.read_text())}
    _, _, section = (ROOT / "docs/cache.md").read_text().partition("\n## Log records\n")
    table = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    listed = {name for names in table for name in re.findall(r"`(\w+)`", names)}
    assert {"miss", "build_finished", "remote_down", "newer_cuda"} <= used
    assert sorted(used - listed) == []
