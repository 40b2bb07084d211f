"""What a child process of the tests runs: a piece of code, in an environment of its own."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

# Imported by the server that children are forked from, so that each starts within milliseconds.
import torch  # noqa: F401
import tvm_ffi  # noqa: F401

from sgljit_core import load_jit, parallel_compile  # noqa: F401
from sgljit_core.compilers import native  # noqa: F401 - children of another user may not be able to read Python
from sgljit_tools.cli import main  # noqa: F401


def run(code: str, environment: dict[str, str], output: str, arguments: dict[str, object]) -> None:
    """Execute ``code`` with ``arguments`` as its globals; what it prints goes to the file ``output``."""
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    try:
        exec(compile(code, "<child>", "exec"), {"Path": Path, **arguments})
    except Exception:  # noqa: BLE001 - whatever it is, the test sees it in the output
        traceback.print_exc()
        os._exit(1)
