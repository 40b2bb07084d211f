"""A directory of this process among the machine's temporary files, which only this user can write.

Nobody can guess its name. It serves for precompiled headers, and for what is compiled where no cache can be used. The
process removes it at its end; one that is killed leaves it for the next one to remove.

No setting waives the checks. The places are those that ``tempfile`` knows, ``XDG_RUNTIME_DIR``, ``/tmp`` and
``/var/tmp``; those in which another user could replace a directory are passed over.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sgljit_core.config import settings
from sgljit_core.errors import UntrustedCacheError

from . import processes, trust

_REMEDY = "let TMPDIR name a directory that belongs to you or to root and that only you can write, or a sticky one"
_OWN = re.compile(r"sgljit\.([\w-]+)\.\w+")


def process_directory() -> Path:
    """The directory of this process alone. A forked child has another.

    Raises UntrustedCacheError where another user could replace it in each place, OSError where no place takes one.
    """
    directory, identity = _of_process(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        if trust.identity(directory.lstat()) == identity:
            return directory
    _of_process.cache_clear()  # somebody cleaned up; its name may be in other hands by now
    return _of_process(os.getpid())[0]


@functools.lru_cache(maxsize=1)
def _of_process(process: int) -> tuple[Path, tuple[int, ...]]:
    failed: OSError | None = None
    for place in dict.fromkeys(_places()):
        try:
            os.close(trust.walk(place, sticky=True))
            _remove_abandoned(place)
            directory = Path(tempfile.mkdtemp(prefix=f"sgljit.{processes.current()}.", dir=place))
        except OSError as error:
            failed = failed if isinstance(failed, UntrustedCacheError) else error
            continue
        atexit.register(_remove, directory, process)
        return directory, trust.identity(directory.lstat())
    if isinstance(failed, UntrustedCacheError):
        raise UntrustedCacheError(failed.path, failed.reason, f"No directory for temporary files is safe: {_REMEDY}")
    raise failed or FileNotFoundError(f"there is no directory for temporary files; {_REMEDY}")


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves it to its parent
        shutil.rmtree(directory, ignore_errors=True)


def _places() -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):  # no directory takes a file
        yield Path(tempfile.gettempdir())
    runtime = settings().runtime_dir
    if runtime is not None and runtime.is_absolute():
        yield runtime
    yield Path("/tmp")  # noqa: S108 - it is checked
    yield Path("/var/tmp")  # noqa: S108


def _remove_abandoned(place: Path) -> None:
    """Remove what dead processes of this user have left."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            name = _OWN.fullmatch(entry.name)
            if name is None or not processes.is_dead(name[1]):
                continue
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                shutil.rmtree(entry.path, ignore_errors=True)
