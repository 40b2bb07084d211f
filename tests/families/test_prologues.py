"""docs/prologue.md shows the code of examples/sgljit-prologues."""

from __future__ import annotations

import re

import isolated

EXAMPLE = isolated.ROOT / "examples" / "sgljit-prologues"
SOURCES = [path for path in (EXAMPLE / "sgljit_prologues").rglob("*") if path.suffix in (".h", ".cpp", ".py")]
PAGE = isolated.ROOT / "docs" / "prologue.md"


def test_the_page_shows_what_is_compiled():
    shown = re.findall(r"^```(?:cpp|text)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    texts = [path.read_text() for path in SOURCES]
    assert len(shown) == 6
    for snippet in shown:
        assert any(snippet in text for text in texts), snippet


def test_the_first_example_has_as_many_lines_as_the_page_says():
    """Lines that an author writes, without empty ones; `sgljit new` writes the rest."""
    first = PAGE.read_text().split("\nThat is all")[0]
    lines = {
        language: sum(
            text.count("\n") - text.count("\n\n") for text in re.findall(rf"```{fence}\n(.*?)```", first, re.DOTALL)
        )
        for language, fence in (("C++", "cpp"), ("Python", "text"))
    }
    assert f"That is all: {lines['C++']} lines of C++ and {lines['Python']} of Python." in PAGE.read_text()
