"""The hooks of the remote. Nothing else is imported while no remote is set.

Where one is, the core imports this module with the first family. To import what asks and verifies takes longer than a
small artifact takes to bring, and a process that has a family seldom misses one at once: so a thread begins with it. It
asks nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sgljit_core import hookimpl
from sgljit_core.lazy import collector_paused

from . import config, handed

if TYPE_CHECKING:
    from .remote import Session

_PAUSE = 0.005  # seconds, in which a miss that imports this module says that it asks


def _session() -> Session | None:
    """The session with the remote, if one is set and may be used."""
    if not config.url():
        return None
    _is_asked.set()
    if _readying.ident is not None:
        _readying.join()  # to import beside it takes longer
    with collector_paused():  # these imports make many objects
        from . import remote

        return remote.current()


def _get_ready() -> None:
    if _is_asked.wait(_PAUSE):  # this module was imported for a miss, which imports the rest by itself
        return
    with contextlib.suppress(Exception):  # the first question meets it again, and says it
        from . import remote

        if session := remote.current():
            session.get_ready()


_is_asked = threading.Event()
_readying = threading.Thread(target=_get_ready, name="sgljit-remote-ready")  # no daemon: an exit waits for imports
if config.url():
    with contextlib.suppress(RuntimeError):  # no thread is left
        _readying.start()
        os.register_at_fork(before=_readying.join)  # in a child, a module that is half imported would stay locked


@hookimpl
def sgljit_fetch(location: Path, toolchain_key: str | None, root: Path) -> Path | None:
    """Bring an artifact from the remote, unless another rank has handed it over."""
    if (kept := handed.root_of(location, toolchain_key)) is not None:
        return kept
    session = _session()
    return session.fetch(location, toolchain_key, root) if session else None


@hookimpl
def sgljit_build_finished(key: str, directory: Path, outcome: str) -> None:
    """Publish what was compiled and kept, where the remote is writable."""
    session = _session()
    if session is None or not config.settings().is_writable:
        return
    from sgljit_core.cache import lookup

    from .objects import Artifact

    try:
        if outcome == "compiled" and (found := lookup.read(directory, directory.parents[4])) is not None:
            session.publish(Artifact(found.manifest, found.payload))
    finally:  # also where another process has damaged the artifact: others would wait for nobody
        session.release(key)


@hookimpl
def sgljit_loaded(directory: Path, key: str, tier: str) -> None:
    """Note what the first of several ranks uses; end the lease of what another process on the same cache has made."""
    handed.note(directory)
    if tier != "made" and (release := handed.leased.get(key)) is not None:
        release()
