"""Is each measured figure of README.md and docs/ on a page of bench/results, and can that page be measured again?

The rules, for a text:

- A number with the sign of a unit (``us``, ``ms``, ``s``, ``KB``, ``MB``, ``GB``, ``GB/s``, ``%``) is a measurement, as
  is "1.4 times". A limit or a setting has its unit in words ("30 seconds") or in powers of two (2 GiB).
- A table with a column headed "ms", "seconds" or the like has measurements.
- A paragraph with a measurement links the page of bench/results that has it. A table belongs to the paragraph before.
- In a paragraph that links such a page, each number with a unit or a decimal point is on a page that it links, as are
  all numbers of its table. Rounded is right, and so is another prefix: 162.3 ms may be quoted as 0.16 s.

The rules, for a page of results: it names the command that made it, and no text quotes a page that does not. The
program of the command exists and knows its options. Each file that the page links exists, and so does each op in its
headings and in columns headed "op".

    python bench/quoted.py
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Not a part of a word, a version or a path: of "H100", "2.11.0", "sm_90a" and "x86-64" nothing is a number.
_NUMBER = r"(?<![\w.,/-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/-])(?!\.\d)"
_UNIT = r" ?(?:us|ms|ns|s|KB|MB|GB|TB|GB/s|TB/s|%|times(?<=\.\d\d times)|times(?<=\.\d times))(?![\w/])"
_MEASUREMENT = re.compile(rf"(?:{_NUMBER} (?:to|and|or) )?{_NUMBER}{_UNIT}")
_UNIT_OF_COLUMN = re.compile(r"(?:\bus|\bms|\bns|\bs|seconds|GB/s|%) \|")
_LINK = re.compile(r"\]\([./]*bench/results/(\w+)\.md\)")
_NO_TEXT = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, an item of a list, or a row of a table."""

    line: int
    text: str
    before: str = ""  # for a row, the paragraph before the table
    heads: str = ""  # for a row, the first row of its table

    @property
    def pages(self) -> list[str]:
        """The pages of results that it links."""
        return list(dict.fromkeys(_LINK.findall(self.before + self.text)))

    def measurements(self) -> list[str]:
        """The numbers that are measurements wherever they stand, such as "1.2 ms"."""
        is_measured = _UNIT_OF_COLUMN.search(self.heads) and self.text != self.heads
        return (re.findall(_NUMBER, _words(self.text)) if is_measured else []) or _MEASUREMENT.findall(
            _words(self.text)
        )

    def figures(self) -> list[str]:
        """The numbers that a page must have, if the paragraph quotes one."""
        numbers = re.findall(_NUMBER, _words(self.text))
        measured = {number for part in self.measurements() for number in re.findall(_NUMBER, part)}
        is_table = bool(_LINK.search(self.before))
        return [number for number in dict.fromkeys(numbers) if is_table or number in measured or "." in number]


def _words(text: str) -> str:
    """A text without code and without the targets of links."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)


def paragraphs(text: str) -> Iterator[Paragraph]:
    """The paragraphs of a text, but for snippets and comments."""
    text = _NO_TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)
    before = heads = ""
    for block in re.finditer(r"^#.*|^\|.*|^.*\S.*(?:\n(?! *(?:-|\d+\.) |\||#).*\S.*)*", text, re.MULTILINE):
        is_row = block[0].startswith("|")
        before = before if is_row else block[0]
        heads = (heads or block[0]) if is_row else ""
        yield Paragraph(text.count("\n", 0, block.start()) + 1, block[0], before if is_row else "", heads)


def _page(name: str) -> str:
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


@cache
def _numbers(page: str) -> frozenset[Decimal]:
    """The numbers on a page of results."""
    return frozenset(Decimal(number.replace(",", "")) for number in re.findall(_NUMBER, _page(page)))


def is_on(figure: str, page: str) -> bool:
    """Whether a page has a number, perhaps with more digits or another prefix of its unit."""
    quoted = Decimal(figure.replace(",", ""))
    return any(
        quoted == (number * scale).quantize(quoted, rounding)
        for number in _numbers(page)
        for scale in (1, 1000, Decimal("0.001"))
        for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN)
    )


def command(text: str) -> str:
    """The command that made a page of results; empty if no program of the repository did."""
    named = re.search(r"^(?:Command:|Drawn by) `([^`]+)`", text, re.MULTILINE)
    return named[1] if named else ""


def in_text(name: str, text: str) -> Iterator[str]:
    """The faults of a text: figures that no page of results has."""
    for paragraph in paragraphs(text):
        place = f"{name}:{paragraph.line}"
        if not paragraph.pages:
            for measurement in paragraph.measurements():
                yield f"{place}: {measurement!r} is a measurement, and its paragraph links no page of bench/results"
            continue
        unknown = [page for page in paragraph.pages if not (RESULTS / f"{page}.md").is_file()]
        known = [page for page in paragraph.pages if page not in unknown]
        yield from (f"{place}: there is no bench/results/{page}.md" for page in unknown)
        yield from (f"{place}: {page}.md has no command" for page in known if not command(_page(page)))
        for figure in paragraph.figures():
            if not any(is_on(figure, page) for page in known):
                yield f"{place}: {figure} is not on {', '.join(f'{page}.md' for page in known)}"


def _program(words: list[str]) -> Path | None:
    """The file of ``python FILE`` or ``python -m MODULE``."""
    if words[1] != "-m":
        return ROOT / words[1] if (ROOT / words[1]).is_file() else None
    path = words[2].replace(".", "/")
    found = [file for end in (".py", "/__main__.py") for file in ROOT.glob(f"*/*/{path}{end}")]
    return found[0] if found else None


@cache
def _ops() -> frozenset[str]:
    """The functions that plugins define, ops among them."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "plugins").rglob("*.py"))
    return frozenset(name for text in sources for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE))


def in_page(name: str, text: str) -> Iterator[str]:
    """The faults of a page of results."""
    words = shlex.split(command(text))
    program = _program(words) if words else None
    if words and program is None:
        yield f"{name}: its command runs a program that is not there: {' '.join(words)}"
    if program:
        near = [*program.parent.glob("*.py"), *(ROOT / "tools/sgljit-tools/sgljit_tools/benchmark").glob("*.py")]
        known = "".join(file.read_text(encoding="utf-8") for file in near)
        for option in (word for word in words if word.startswith("--")):
            if f'"{option}"' not in known:
                yield f"{name}: {program.relative_to(ROOT)} has no option {option}"
    for target in re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", re.sub(r"`[^`]*`", "", text)):
        if not (RESULTS / target).exists():
            yield f"{name}: there is no file {target}"
    columns = re.findall(r"^\| op \|.*\n\|-.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    named = re.findall(r"^## (\w+_\w+)", text, re.MULTILINE)
    named += [name for rows in columns for name in re.findall(r"^\| `?(\w+)", rows, re.MULTILINE)]
    yield from (f"{name}: no plugin has the op {op}" for op in dict.fromkeys(named) if op not in _ops())


def problems() -> list[str]:
    """All that is wrong."""
    pages = sorted(RESULTS.glob("*.md"))
    return [
        problem
        for look, paths in ((in_text, TEXTS), (in_page, pages))
        for path in paths
        for problem in look(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    found = problems()
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
