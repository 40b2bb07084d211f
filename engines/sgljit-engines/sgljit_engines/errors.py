"""What can go wrong in what adapters share, besides what the core raises?"""

from __future__ import annotations

from sgljit_core.errors import SgljitError


class UnsupportedEngineError(SgljitError, RuntimeError):
    """An engine is not installed, or is of a version that its adapter was not tested with."""


class ModelConfigError(SgljitError, ValueError):
    """A ``config.json`` does not give the shapes of a model, or the ranks cannot share its heads."""


__all__ = ["ModelConfigError", "UnsupportedEngineError"]
