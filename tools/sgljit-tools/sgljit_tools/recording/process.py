"""A call that takes a process of its own, whose environment differs and which may crash."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sgljit_core.errors import SgljitError
from sgljit_core.machine import private
from sgljit_tools.environment import inherited_environment
from sgljit_tools.errors import RecordingError

T = TypeVar("T")


def in_a_process(call: Callable[[], T], **environment: str) -> T:
    """The result of a call in a process of its own, whose output goes to this one's standard error.

    Args:
        call: a function of a module, or a ``functools.partial`` of one; pickle takes it, and its result.
        environment: variables to change; "{scratch}" in them is a directory that is removed behind the process. A
            ``PYTHONPATH`` comes before the path of this process.

    Raises:
        SgljitError: the call raises it.
        RecordingError: the process failed, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="record-", dir=private.process_directory()) as scratch:
        Path(scratch, "call").write_bytes(pickle.dumps(call))
        changed = {name: value.replace("{scratch}", scratch) for name, value in environment.items()}
        # It imports what this process would, and nothing from the working directory, which may be anybody's.
        path = [changed.get("PYTHONPATH", ""), *sys.path]
        changed["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, path)))
        command, pipe = [sys.executable, "-c", f"from {__name__} import main; main()"], subprocess.PIPE
        env = inherited_environment(**changed)
        done = subprocess.run(
            command, cwd=scratch, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise RecordingError(f"a process ended with status {done.returncode}:\n{done.stdout[-4000:].strip()}")
        sys.stderr.write(done.stdout)
        result = pickle.loads(Path(scratch, "result").read_bytes())  # noqa: S301 - of this user's own process
    if isinstance(result, SgljitError):
        raise result
    return result  # type: ignore[no-any-return]


def main() -> None:
    """In that process, which begins in its scratch directory: make the call."""
    scratch = Path.cwd()
    try:
        result = pickle.loads((scratch / "call").read_bytes())()  # noqa: S301 - of this user's own process
    except SgljitError as error:
        result = error
    (scratch / "result").write_bytes(pickle.dumps(result))
