"""Families use what the headers document: the namespaces `details` are theirs alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for place in ("plugins", "engines", "examples")
    for path in (ROOT / place).glob("*/*/csrc/*")
    if path.suffix in (".h", ".cpp", ".cuh", ".cu")
)


def test_there_are_sources() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_family_names_the_details_of_the_headers(source: Path) -> None:
    lines = source.read_text(encoding="utf-8").splitlines()
    has_its_own = any(line.startswith("namespace details") for line in lines)
    named = r"\b(host|device|sgl|runtime|driver)::(\w+::)*details\b" if has_its_own else r"\bdetails\b *(::|\{|;|$)"
    found = [f"{source.name}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if re.search(named, line)]
    assert found == []
