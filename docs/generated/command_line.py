"""Which commands and options does ``sgljit`` have? The output of each command for ``--help``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main
from typer.testing import CliRunner

from sgljit_tools.cli.main import application


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with the words that follow ``sgljit``, groups left out."""

    def inside(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield words, command
            return
        for word, one in command.commands.items():
            yield from inside(f"{words} {word}".strip(), one)

    yield from inside("", typer.main.get_command(application()))


def _help(words: str) -> str:
    plain = typer.Typer(rich_markup_mode=None)
    plain.add_typer(application(), name="sgljit")
    printed = CliRunner().invoke(plain, ["sgljit", *words.split(), "--help"], prog_name="", terminal_width=100)
    assert printed.exit_code == 0, printed.output
    return printed.output


def markdown() -> str:
    """A section for each command."""
    return "\n\n".join(f"## sgljit {words}\n\n```text\n{_help(words).strip()}\n```" for words, _ in commands()) + "\n"
