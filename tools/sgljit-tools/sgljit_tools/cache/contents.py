"""The artifacts of a root, their size and their last use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

_SOURCE_KEY = re.compile(r"[0-9a-f]{32}")
_ENTRY = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{8})?")  # see Manifest.entry_name


def last_use(directory: Path) -> float:
    """When an artifact was last used, to within a day, in seconds since 1970; 0 where there is none."""
    with contextlib.suppress(OSError):
        return directory.stat().st_mtime
    return 0.0


def size(directory: Path) -> int:
    """The bytes that an artifact takes."""
    with contextlib.suppress(OSError):
        return sum(file.lstat().st_size for file in directory.iterdir())
    return 0


def artifact_directories(root: Path, closed: Callable[[Path], object] = lambda _: None) -> list[Path]:
    """Every artifact's directory below a root, whole or not; none below a closed directory. Raises OSError.

    Nothing else below it is listed: callers remove what is, and a user may have named a directory of his own.

    Args:
        closed: is called with each directory that this user may not list.
    """
    places = [path for path in _children(root) if not path.name.startswith(".")]
    for _ in range(3):
        places = [path for place in places for path in _children(place, closed)]
    keys = [path for path in places if _SOURCE_KEY.fullmatch(path.name)]
    return [path for key in keys for path in _children(key, closed) if _ENTRY.fullmatch(path.name)]


def _children(directory: Path, closed: Callable[[Path], object] | None = None) -> list[Path]:
    """The directories in a directory, links left out; nothing of one that is gone, or that may be ``closed`` and is."""
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if closed is None:
            raise
        closed(directory)
        return []
