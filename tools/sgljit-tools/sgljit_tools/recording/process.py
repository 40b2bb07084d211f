"""A question that takes a process of its own, whose environment differs and which may crash."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sgljit_core.machine import private
from sgljit_tools.environment import inherited_environment
from sgljit_tools.errors import RecordingError


def ask(module: str, question: Any, **environment: str) -> Any:
    """Run a module with a question; its answer.

    Args:
        module: its name. Its ``main`` gets a file for ``question_of`` and ``reply``.
        question: anything that pickle takes, as is the answer.
        environment: variables to change; "{scratch}" in them is a directory that is removed behind the process.

    Raises:
        RecordingError: the process failed, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="record-", dir=private.process_directory()) as scratch:
        file = Path(scratch, "question")
        file.write_bytes(pickle.dumps(question))
        changed = {name: value.replace("{scratch}", scratch) for name, value in environment.items()}
        # It imports what this process would, and nothing from the working directory, which may be anybody's.
        changed["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        done = subprocess.run(
            [sys.executable, "-c", f"from {module} import main; main({str(file)!r})"],
            cwd=scratch,
            env=inherited_environment(**changed),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RecordingError(f"{module} ended with status {done.returncode}:\n{done.stdout[-4000:].strip()}")
        return pickle.loads(file.with_name("answer").read_bytes())  # noqa: S301 - of this user's own process


def question_of(file: str) -> Any:
    """In such a process: the question."""
    return pickle.loads(Path(file).read_bytes())  # noqa: S301 - of this user's own process


def reply(file: str, answer: Any) -> None:
    """In such a process: the answer, once."""
    Path(file).with_name("answer").write_bytes(pickle.dumps(answer))
