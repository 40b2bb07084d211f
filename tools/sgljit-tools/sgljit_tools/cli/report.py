"""``sgljit report``: what does an issue need to say about this machine? One text, without what is nobody's business."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import traceback
from pathlib import Path
from typing import Annotated

import importlib_metadata
import typer

from . import doctor

# Distributions whose versions change what a kernel is compiled with, or what calls it.
_TELLING = re.compile(r"(?i)sgljit|torch|apache-tvm-ffi|nvidia-|cuda-|triton|transformers|vllm|sglang|numpy|pluggy")
_NAME = r"[\w-]*(?:token|password|passwd|secret|credentials?|(?:api|access|private)[_-]?key(?:[_-]id)?)"
_VALUE = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\S+)"""
_BEFORE_SECRETS = (  # NAME=VALUE, "NAME": "VALUE" in JSON, --NAME VALUE, and the headers of HTTP
    rf"""((?<![\w-])(?:{_NAME}\\*["']?[ \t]*[=:][ \t]*|--{_NAME}[ \t]+))""",
    r"""(\b(?:authorization\\*["']?[ \t]*[=:][ \t]*\\*["']?\w+|bearer)[ \t]+)""",
)


def write_report(
    log: Annotated[Path | None, typer.Option(help="A file to add, such as what SGLJIT_LOG=debug printed.")] = None,
) -> None:
    """Print one text for an issue: what `sgljit doctor` finds, the installed distributions, and a log.

    The user's name, the home directory, the machine's name, and what addresses and variables carry as a secret are left
    out. Read it before you send it: a log may hold names of your own.
    """
    system = f"{platform.system()} {platform.release()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    try:
        found = doctor.lines(doctor.report(asks_scripts=True))
    except Exception:  # noqa: BLE001 - where the doctor fails, that is what the issue is about
        found = traceback.format_exc().splitlines()
    names = sorted({(one.metadata["Name"] or "?", one.version) for one in importlib_metadata.distributions()})
    versions = [f"{name} {number}" for name, number in names if _TELLING.match(name)]
    facts = [f"{'system':<11} {system}", *found, "", *versions]
    text = "\n".join(["## sgljit report", "", "```text", *facts, "```"])
    if log is not None:
        text += f"\n\n### {log.name}\n\n```text\n{log.read_text(encoding='utf-8', errors='replace').rstrip()}\n```"
    typer.echo(redacted(text))


def redacted(text: str) -> str:
    """A text without the names of the user and of the machine, and without passwords and tokens."""
    home = os.path.expanduser("~")  # noqa: PTH111 - raises nothing
    text = text.replace(home, "~") if len(home) > 1 else text
    hidden = {platform.node(): "HOST"}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        hidden[getpass.getuser()] = "USER"
    for name, shown in hidden.items():
        if len(name) > 1 and name != "root":
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", shown, text)
    for before in _BEFORE_SECRETS:
        text = re.sub(f"(?i){before}{_VALUE}", r"\1***", text)
    return re.sub(r"\w[\w+.-]{0,30}://\S+", lambda found: doctor.without_secrets(found[0]), text)
