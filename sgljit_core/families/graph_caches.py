"""How does a graph that was compiled with another release of an op count as another graph?

torch.compile keeps compiled graphs on disk. Its keys hold an op's name, and neither its schema nor its fake: with a
release that mends one of them, graphs that were compiled before would still be used, and give wrong results. So
the tag of those keys, ``torch.compiler.config.cache_key_tag``, gets a digest of the declared ops behind
the program's own. The setting is that of a thread or task: whoever compiles has its own, so a fake sets it again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sgljit_core.machine.forks import ForkLock

_MARK = "+sgljit-"

_lock = ForkLock()
_digests: dict[str, str] = {}
_all = ""  # the digest of these


def distinguish(op: str, package: str, schemas: Sequence[str], fake: Callable[..., Any] | str | None) -> None:
    """Make compiled graphs depend on what this declaration says of an op.

    Args:
        op: the op's name, with its family.
        package: the plugin's; its ``__version__`` counts, if it has one.
        schemas: those of the library ops.
        fake: see ``KernelFamily.op``; the file that it stands in counts.
    """
    version = getattr(sys.modules.get(package.partition(".")[0]), "__version__", "")
    digest = _digest(version, *schemas, "" if fake is None else _text_of(fake))
    global _all  # noqa: PLW0603 - one set of ops in a process
    with _lock.here():
        _digests[op] = digest
        _all = _digest(*(f"{name} {_digests[name]}" for name in sorted(_digests)))
    tag_this_thread()


def tag_this_thread() -> None:
    """Set the tag where the calling thread or task will look for it."""
    config = torch.compiler.config
    own, _, digest = config.cache_key_tag.partition(_MARK)
    if digest != _all:
        config.cache_key_tag = own + _MARK + _all


def _text_of(fake: Callable[..., Any] | str) -> str:
    """Its name, and the text of its file if that is Python."""
    while isinstance(fake, functools.partial):
        fake = fake.func
    if isinstance(fake, str):
        name = fake
        try:
            found = importlib.util.find_spec(fake.partition(":")[0])
        except (ImportError, ValueError):  # whoever needs the fake names the fault
            found = None
        file = found.origin if found else None
    else:
        name = f"{getattr(fake, '__module__', '')}.{getattr(fake, '__qualname__', type(fake).__qualname__)}"
        file = getattr(getattr(fake, "__code__", None), "co_filename", None)
    if file is None or not Path(file).is_file():
        return name
    return f"{name} {Path(file).read_text(encoding='utf-8', errors='replace')}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
