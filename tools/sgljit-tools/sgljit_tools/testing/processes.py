"""Questions that take a process of their own, which may crash and whose cache may be empty."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sgljit_tools.environment import inherited_environment

from .subject import Fault

Answer = dict[str, Any]


def ask(module: str, *arguments: str, **environment: str) -> list[Answer]:
    """Run a module of this room; the answers that it wrote.

    Args:
        module: its name; it gets a file to write to, and the arguments. See ``answering``.
        environment: variables to change.

    Raises:
        Fault: the process failed, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="sgljit-test-") as scratch:
        file = Path(scratch, "answers")
        file.touch()
        command = [sys.executable, "-m", f"{__package__}.{module}", str(file), *arguments]
        changed = {name: value.format(scratch=scratch) for name, value in environment.items()}
        # It imports what this process would.
        changed["PYTHONPATH"] = ":".join(filter(None, sys.path))
        done = subprocess.run(
            command,
            env=inherited_environment(**changed),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        answers = [json.loads(line) for line in file.read_text().splitlines()]
    if done.returncode != 0:
        raise Fault(f"{' '.join(command[1:])} ended with status {done.returncode}:\n{done.stdout[-4000:].strip()}")
    return answers


def answering(file: str) -> Callable[..., None]:
    """In such a process: what writes an answer, at once."""

    def answer(**data: Any) -> None:
        with Path(file).open("a") as lines:
            lines.write(json.dumps(data) + "\n")

    return answer
