"""What do the C++ headers offer? Each header's declarations with their comments, without bodies.

A declaration is shown if it has a comment of three slashes and stands outside of a namespace ``details``. A class is
shown with all of its public members.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include" / "sgl_kernel"

# The parts of a function's declaration that speak to a compiler or the build, not to its caller.
_NOISE = re.compile(r"\b(?:SGL_INLINE|inline) +|\[\[[^\]]*\]\]\s*|\bSGL_UNCALLED ")
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
_MACRO_CALL = re.compile(r"SGL_\w+\([^;{}]*?\)[ \t]*\n")
_COMMENT = re.compile(r"//.*|/\*(?:[^*]|\*(?!/))*\*/")
_ALIGNAS = re.compile(r"alignas\((?:[^()]|\([^()]*\))*\)\s*")
_INITIALISERS = re.compile(r"\)(\s*noexcept)?\s+:\s+\w.*", re.DOTALL)  # of a constructor
_SCOPE = re.compile(r"(?:struct|class|union|enum)\b")


@dataclass(frozen=True)
class Statement:
    """A declaration: the comment before it, its text up to a body, the body, what ends it, and a comment behind it."""

    comment: str
    head: str
    body: str | None = None
    tail: str = ""
    behind: str = ""

    @property
    def is_scope(self) -> bool:
        """Whether its body holds the members of a type."""
        return self.body is not None and bool(_SCOPE.match(_bare(self.head)))

    @property
    def name(self) -> str:
        """The name that it declares."""
        head = _bare(self.head)
        if match := re.search(
            r"#define (\w+)|\busing (\w+) =|\bconcept (\w+)|(operator *[^\s(]+|operator\(\))\(", head
        ):
            return str(next(filter(None, match.groups())))
        if self.is_scope:
            match = re.search(r"\b(?:struct|class|union|enum)(?: class| struct)? ([\w:]+)", head)
        else:
            match = re.search(r"([\w~:]+)(?:<[^()]*>)?\s*(?:\(|=|\{|\[|;|$)", head)
        assert match is not None, head
        return match[1]


def _bare(head: str) -> str:
    """The declaration behind ``template <...>`` and ``requires``, without attributes."""
    head = _ALIGNAS.sub("", _NOISE.sub("", head)).strip()
    while head.startswith("template"):
        depth = 0
        for index, character in enumerate(head):
            depth += (character == "<") - (character == ">" and head[index - 1] != "-")
            if character == ">" and depth == 0:
                break
        head = head[index + 1 :].lstrip()
        if head.startswith("requires"):
            head = head.partition("\n")[2].lstrip() or head
    return head


def statements(text: str, *, only_public: bool = False) -> Iterator[tuple[tuple[str, ...], Statement]]:
    """The declarations of a text, with the namespaces around each."""
    position, comment, is_public = 0, "", True
    while position < len(text):
        rest = text[position:]
        if match := re.match(r"\s+", rest):
            position += match.end()
        elif match := re.match(r"///(?!<) ?(.*)\n?", rest):
            comment += match[1] + "\n"
            position += match.end()
        elif match := re.match(r"//.*\n?", rest):
            position += match.end()
        elif match := re.match(r"#(?:.*\\\n)*.*\n?", rest):
            define = re.match(r"#define \w+(?:\([^)]*\))?", rest)
            if define and comment:
                yield (), Statement(comment, define[0])
            if define:
                comment = ""
            position += match.end()
        elif match := re.match(r"(public|private|protected):", rest):
            is_public = match[1] == "public"
            position += match.end()
        elif match := re.match(r"namespace ([\w:]+) \{|namespace \{|extern \"C\" \{", rest):
            body = _braces(text, position + match.end() - 1)
            outer = (match[1],) if match[1] else ()
            for inner, statement in statements(body) if "details" not in str(match[1]).split("::") else ():
                yield (*outer, *inner), statement
            position += match.end() + len(body) + 1
            comment = ""
        elif match := _MACRO_CALL.match(rest):
            position += match.end()
        elif rest[0] in ";}":
            position += 1
        else:
            statement, position = _statement(text, position, comment)
            if is_public or not only_public:
                yield (), statement
            comment = ""


def _braces(text: str, start: int) -> str:
    """The text between the brace at ``start`` and the one that closes it."""
    depth, position = 0, start
    while True:
        if match := _COMMENT.match(text, position) or _STRING.match(text, position):
            position = match.end()
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            return text[start + 1 : position - 1]


def _statement(text: str, start: int, comment: str) -> tuple[Statement, int]:
    """The declaration that begins at ``start``, and where the next one may begin."""
    depth, position, body, tail = 0, start, None, ""
    while text[position] != ";" or depth:
        if match := _COMMENT.match(text, position) or _STRING.match(text, position):
            position = match.end()
            continue
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[position], 0)
        if text[position] == "{" and not depth:
            head = text[start:position]
            body = _braces(text, position)
            end = position + len(body) + 2
            outside = re.sub(r"\(.*\)", "()", _bare(head), flags=re.DOTALL)
            is_value = ("=" in outside and "operator" not in outside) or "concept " in outside
            is_requirement = re.search(r"\brequires(?:\s*\([^()]*\))?\s*$", head)
            is_member = _INITIALISERS.search(head) and re.search(r"\w$", head)
            if is_value or is_requirement or is_member or not (_SCOPE.match(outside) or "(" in outside):
                position = end  # an initialiser, or a requirement: the declaration goes on
                body = None
                continue
            head = _INITIALISERS.sub(r")\1", head) if "(" in outside else head
            if closed := re.compile(r"( \w+)?;").match(text, end):
                tail, end = closed[1] or "", closed.end()
            position = end
            break
        position += 1
    else:
        head = text[start:position]
        position += 1
    behind = re.compile(r" *///< (.*(?:\n *///< .*)*)").match(text, position)
    position = behind.end() if behind else position
    note = re.sub(r"\n *///< ", " ", behind[1]) if behind else ""
    return Statement(comment, head.rstrip(), body, tail, note), position


def declaration(statement: Statement) -> str:
    """The declaration as it is shown: of a type with its public members, of others without the body."""
    head = "\n".join(_unindented(_NOISE.sub("", statement.head).splitlines()))
    if not statement.is_scope:
        tail = "" if head.startswith("#define") else ";"
        return head + tail + (f"  // {statement.behind}" if statement.behind else "")
    assert statement.body is not None
    if re.search(r"\benum\b", head):
        return f"{head} {{{re.sub('///<', '//', statement.body)}}}{statement.tail};"
    members = []
    for _, member in statements(statement.body, only_public=True):
        if member.head.startswith(("static_assert", "friend", "template <>")) or "= delete" in member.head:
            continue
        told = [f"// {line}".rstrip() for line in plain(member.comment).splitlines()]
        members += [*told, *declaration(member).splitlines()]
    return "\n".join([f"{head} {{", *(f"  {line}".rstrip() for line in members), f"}}{statement.tail};"])


def _unindented(lines: list[str]) -> list[str]:
    """The lines of a declaration, which began at some indentation that the first has lost."""
    rest = textwrap.dedent("\n".join(lines[1:])).splitlines()
    is_continued = lines[0].rstrip().endswith(("(", ","))
    return [lines[0], *(f"    {line}" if is_continued else line for line in rest)]


def plain(comment: str) -> str:
    """A comment as text."""
    comment = re.sub(r"\\t?param (\w+)", r"\1:", comment)
    return re.sub(r"\\(?:brief|endcode|code|note) ?|\\(?=throws)", "", comment).strip()


def markdown_of(comment: str) -> str:
    """A comment as Markdown."""
    parts = re.split(r"\\code\n(.*?)\\endcode\n?", re.sub(r"\\file .*\n", "", comment), flags=re.DOTALL)
    shown = []
    for index, part in enumerate(parts):
        if index % 2:
            shown.append(f"```cpp\n{textwrap.dedent(part).rstrip()}\n```")
            continue
        listed = re.sub(r"^\\t?param (\w+)", r"\n- `\1`:", part, flags=re.MULTILINE)
        listed = re.sub(r"^\\throws (\w+)", r"\n- throws `\1`", listed, flags=re.MULTILINE)
        listed = re.sub(r"^\\note ", "\n", listed, flags=re.MULTILINE).replace("\\brief ", "")
        shown.append(_escaped(listed).strip())
    return "\n\n".join(filter(None, shown))


def _escaped(text: str) -> str:
    """The signs of C++ that Markdown would take for its own, outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", piece) for piece in pieces)


def header(name: str) -> str:
    """The section of a header."""
    text = (INCLUDE / name).read_text(encoding="utf-8")
    about = re.search(r"^/// \\file .*\n((?:///.*\n)*)", text, re.MULTILINE)
    assert about is not None, f"{name} does not say what it is for"
    text = text.replace(about[0], "", 1)
    told = re.sub("^/// ?", "", about[1], flags=re.MULTILINE)
    sections = [f"## {name}", f"`#include <sgl_kernel/{name}>`", markdown_of(told)]
    shown = [
        ("::".join((*outer, statement.name)), statement)
        for outer, statement in statements(text)
        if statement.comment.strip()
    ]
    for title, same in groupby(shown, key=lambda pair: pair[0]):
        sections.append(f"### `{title}`")
        for _, statement in same:
            sections.append(f"```cpp\n{declaration(statement)}\n```")
            sections.append(markdown_of(statement.comment))
    return "\n\n".join(sections)


def markdown(*names: str) -> str:
    """The sections of some headers."""
    return "\n\n".join(map(header, names)) + "\n"
