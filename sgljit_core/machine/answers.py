"""What did we find out last time, on this machine?

Asking a compiler for its version takes 20 ms and searching for nvcc 70, which is most of a warm start. Answers are kept
beside the cache, one file each. The file's name is a hash of the question, which names everything that the answer
depends on, and of the user: in a cache that a group shares, nobody relies on the answers of another member. An answer
that is lost or unreadable is found out again; nothing fails because of this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence

from sgljit_core.config import cache_root
from sgljit_core.errors import SgljitError

from . import roots, trust

DIRECTORY = ".answers"
NAME = re.compile(r"[0-9a-f]{32}\.json(\.[0-9a-f]{8})?")  # of an answer; with the suffix, one that is being written
_LARGEST = 16 << 20


def recall(question: Sequence[str]) -> str | None:
    """The answer that was kept for a question."""
    root, name = cache_root(), _name(question)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with trust.directory(root, DIRECTORY) as directory:
            descriptor = os.open(name, flags, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            trust.check(root / DIRECTORY / name, os.fstat(descriptor))
            asked, answer = map(json.loads(file.read(_LARGEST)).get, ("question", "answer"))
    except (OSError, ValueError, AttributeError, RecursionError, SgljitError):
        return None
    return answer if asked == list(question) and isinstance(answer, str) else None


def remember(question: Sequence[str], answer: str) -> None:
    """Keep an answer, if there is a place for it."""
    name = _name(question)
    text = json.dumps({"question": list(question), "answer": answer})
    written = f"{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.suppress(OSError, SgljitError), roots.made(cache_root(), DIRECTORY) as place:
        try:
            with os.fdopen(os.open(written, flags, 0o600, dir_fd=place), "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(written, name, src_dir_fd=place, dst_dir_fd=place)
        except OSError:
            os.unlink(written, dir_fd=place)


def _name(question: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([os.getuid(), *question]).encode()).hexdigest()[:32] + ".json"
