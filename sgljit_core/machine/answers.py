"""What did we find out last time, on this machine?

Asking a compiler for its version takes 20 ms and searching for nvcc 70, which is most of a warm start. Answers are
kept beside the cache, each in a file of its own, under everything that the answer depends on. A lost or unreadable
answer is found out again; nothing fails because of this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sgljit_core import paths
from sgljit_core.errors import SgljitError

from . import trust

DIRECTORY = ".answers"


def recall(question: Sequence[str]) -> str | None:
    """The answer that was kept for a question."""
    try:
        with open(_path(question), "rb", opener=_opener) as file:
            trust.check(Path(file.name), os.fstat(file.fileno()))
            kept = json.loads(file.read())
    except (OSError, ValueError, RecursionError, SgljitError):
        return None
    if not isinstance(kept, dict) or kept.get("question") != list(question):
        return None
    answer = kept.get("answer")
    return answer if isinstance(answer, str) else None


def remember(question: Sequence[str], answer: str) -> None:
    """Keep an answer, if there is a place for it."""
    path = _path(question)
    text = json.dumps({"question": list(question), "answer": answer})
    with contextlib.suppress(OSError, SgljitError):
        trust.make_root(paths.cache_root())
        trust.make_directory(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                trust.share(descriptor)
                file.write(text)
            Path(name).rename(path)
        except OSError:
            Path(name).unlink(missing_ok=True)


def _path(question: Sequence[str]) -> Path:
    name = hashlib.sha256(json.dumps(list(question)).encode()).hexdigest()[:32]
    return paths.cache_root() / DIRECTORY / f"{name}.json"


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
