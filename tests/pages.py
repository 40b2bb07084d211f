"""The snippets of a Markdown page: what they are, and how a reader would run them.

The line that opens a snippet names its language, and may go on with marks:

- ``gpu``: needs a GPU, and perhaps NVIDIA's tools; elsewhere its syntax is checked;
- ``network``: installs from an index, or uploads; its syntax is checked;
- ``long``: takes many minutes, such as a whole benchmark; its syntax is checked;
- ``fails``: ends with another exit status than 0;
- ``output``: a text that the snippet before it prints; ``...`` stands for anything.

A snippet whose first line is a comment with the name of a file is that file. A text without a mark is shown, not run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import isolated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGES = {"bash", "cpp", "json", "python", "text", "toml"}
MARKS = {"gpu", "network", "long", "fails", "output"}


@dataclass(frozen=True)
class Snippet:
    """A snippet of a page."""

    page: str
    line: int
    language: str
    marks: frozenset[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({' '.join([self.language, *sorted(self.marks)])})"

    @property
    def is_only_read(self) -> bool:
        """Whether no test runs it."""
        return not self.marks.isdisjoint({"network", "long"})

    @cached_property
    def file(self) -> str | None:
        """The file that it is."""
        named = re.match(r"(?://|#) ([\w./-]+\.\w+)\n", self.text)
        return named[1] if named else None


def snippets(page: Path) -> list[Snippet]:
    """The snippets of a page, but for directives of the site."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(isolated.ROOT).as_posix()
    found = []
    for match in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", text, re.MULTILINE):
        language, *marks = match[2].split() or [""]
        if language.startswith("{"):
            continue
        body = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Snippet(name, text.count("\n", 0, match.start()) + 1, language, frozenset(marks), body))
    return found


def check_syntax(snippet: Snippet) -> None:
    """Read a snippet as its language's parser does; C++ has to be compiled."""
    if snippet.language == "python":
        compile(snippet.text, str(snippet), "exec")
    elif snippet.language == "bash":
        subprocess.run(["bash", "-n"], input=snippet.text, text=True, check=True)
    elif snippet.language in ("toml", "json"):
        {"toml": tomllib.loads, "json": json.loads}[snippet.language](snippet.text)


def run(page: list[Snippet], python: str | Path, directory: Path, env: Mapping[str, str], *, gpu: bool) -> None:
    """Do what a page says, from top to bottom, in a directory."""
    printed: str | None = None
    for snippet in page:
        check_syntax(snippet)
        if snippet.file is not None:
            (directory / snippet.file).write_text(snippet.text)
        elif snippet.is_only_read or ("gpu" in snippet.marks and not gpu):
            printed = None
        elif "output" in snippet.marks:
            assert printed is None or all(_occurs(line, printed) for line in _lines(snippet.text)), (
                f"{snippet} is not what was printed:\n{printed}"
            )
        elif snippet.language in ("bash", "python"):
            command = [python, "-c"] if snippet.language == "python" else ["bash", "-euo", "pipefail", "-c"]
            done = subprocess.run(
                [*command, snippet.text],
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=900,
            )
            printed = done.stdout
            assert (done.returncode != 0) == ("fails" in snippet.marks), f"{snippet}: {done.returncode}\n{printed}"


def _lines(text: str) -> Iterator[str]:
    """The lines of an output that say something."""
    return (line for line in text.splitlines() if line.strip(" .="))


def _occurs(line: str, printed: str) -> bool:
    return re.search(r".*?".join(re.escape(part) for part in line.split("...")), printed) is not None


def shims(directory: Path, python: str | Path) -> Path:
    """A directory for PATH with the programs that a page calls, each run by ``python``."""
    directory.mkdir(parents=True, exist_ok=True)
    programs = {"sgljit": "sgljit_core", "sgljit-remote": "sgljit_remote", "pip": "pip", "pytest": "pytest"}
    for name, module in programs.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec "{os.fspath(python)}" -m {module} "$@"\n')
        script.chmod(0o755)
    return directory
