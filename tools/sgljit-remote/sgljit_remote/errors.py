"""What can go wrong with a remote, besides what the core raises?

A process that serves a model meets none of these: there each is a warning, and what is missing is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sgljit_core.errors import PluginLoadError, SgljitError


class RemoteUnavailableError(SgljitError, ConnectionError):
    """A remote cannot be read or written now."""


class UntrustedRemoteError(SgljitError, PermissionError):
    """Nothing says whose code a remote holds: no key is trusted, and others could write to it."""


class RefusedObjectError(SgljitError, ValueError):
    """An object of a remote is damaged, not signed by a trusted key, or not what was asked for."""


class LossError(Exception):
    """An object would lose something that it has. Nobody outside of this package meets it."""


class BundleMismatchError(SgljitError, ValueError):
    """A bundle is for another machine, or for other versions. ``differences`` has a text for each value."""

    def __init__(self, file: Path, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        listed = "\n".join(f"  - {one}" for one in differences)
        super().__init__(
            f"{file} is for another machine:\n{listed}\nNothing was laid out. Bundle on a machine like this one, or "
            f"name the parts that fit with --part"
        )


class KeyFileError(SgljitError, ValueError):
    """A file of a key cannot be read or written, has expired, or another user could have written it."""


class LockError(SgljitError, ValueError):
    """A lock of plugins cannot be written or used."""


class PluginDiffersError(PluginLoadError):
    """An installed plugin is not what the lock of ``SGLJIT_LOCK`` says, so it is not imported."""


class WarmUpError(SgljitError, RuntimeError):
    """The first rank of a group could not make what the others waited for."""


class RankLostError(SgljitError, TimeoutError):
    """A rank of a group is gone, or did not answer in time."""


__all__ = [
    "BundleMismatchError",
    "KeyFileError",
    "LockError",
    "PluginDiffersError",
    "RankLostError",
    "RefusedObjectError",
    "RemoteUnavailableError",
    "UntrustedRemoteError",
    "WarmUpError",
]
