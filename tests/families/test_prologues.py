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
    assert len(shown) == 5
    for snippet in shown:
        assert any(snippet in text for text in texts), snippet
