"""Plain English in docstrings, comments and error texts: the patterns that a program can find."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("sgljit_core", "tools", "plugins", "engines", "examples", "bench", "docs", "release")
FILES = sorted(file for place in PLACES for file in (ROOT / place).rglob("*.py") if "tests" not in file.parts)
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n")

# Each with a sentence that has it. A question may begin with "What"; the first line of a function is none.
BANNED = {
    r"Of (?!course)": "Of several processes the first wins.",
    r"(What|Those) (?!.*\?$)": "What was used within the last day stays.",
    r".*\bas of\b": "It is complete as of today.",
    r".*\btells?\b": "Put them into a root and tell how many.",
    r".*\blies where\b": "It says what lies where.",
}


def sentences(text: str) -> list[str]:
    return [" ".join(sentence.split()) for sentence in SENTENCE.split(text)]


def banned(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if any(re.match(pattern, sentence) for pattern in BANNED)]


def texts(source: str) -> Iterator[str]:
    """The docstrings and the texts of errors, and the comments, each block of lines as one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines.append(token.string.lstrip("#").strip())
        elif token.type != tokenize.NL:
            yield " ".join(lines)
            lines = []


@pytest.mark.parametrize("pattern", BANNED)
def test_a_banned_pattern_is_found(pattern):
    assert re.match(pattern, BANNED[pattern])
    assert banned(f"First comes this. {BANNED[pattern]}") == [BANNED[pattern]]


def test_a_question_and_plain_sentences_are_not():
    assert banned("What is installed? The first of several processes wins. Of course.") == []


def test_no_text_has_a_banned_pattern():
    found = {str(f.relative_to(ROOT)): [s for text in texts(f.read_text()) for s in banned(text)] for f in FILES}
    assert {file: sorted(set(sentences)) for file, sentences in found.items() if sentences} == {}


def test_no_function_begins_with_a_question():
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                found += [f"{file.relative_to(ROOT)}: {node.name}"] * first.endswith("?")
    assert found == []
