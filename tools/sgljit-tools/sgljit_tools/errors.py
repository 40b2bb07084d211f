"""What can go wrong at the command line and in the kit, besides what the core raises?"""

from __future__ import annotations

from sgljit_core.errors import SgljitError


class NoDeviceError(SgljitError, RuntimeError):
    """Checks were asked for on a CUDA device that this machine does not have."""


class ArchiveError(SgljitError, ValueError):
    """A file is not an archive of artifacts, or has content that such an archive must not have."""


class WheelError(SgljitError, ValueError):
    """Artifacts cannot be added to a wheel."""


class NewDistributionError(SgljitError, ValueError):
    """`sgljit new` got a name that is invalid or taken, or could not write the files. Nothing was written."""


class RecordingError(SgljitError, RuntimeError):
    """The calls of a family could not be recorded."""


__all__ = ["ArchiveError", "NewDistributionError", "NoDeviceError", "RecordingError", "WheelError"]
