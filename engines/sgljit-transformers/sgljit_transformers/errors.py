"""The failures of ``enable`` and ``disable``."""

from __future__ import annotations

from sgljit_core.errors import SgljitError

__all__ = ["AlreadyEnabledError", "ForeignForwardError", "NotEnabledError", "UnsupportedModelError"]


class AlreadyEnabledError(SgljitError, RuntimeError):
    """``enable`` was called for a model that is enabled, or that holds a part that is."""


class NotEnabledError(SgljitError, RuntimeError):
    """``disable`` was called for a model that is not enabled."""


class ForeignForwardError(SgljitError, RuntimeError):
    """Something else has replaced the ``forward`` of a layer, so that it is not the adapter's to replace or restore."""


class UnsupportedModelError(SgljitError, RuntimeError):
    """With ``SGLJIT_ENGINES=strict``: a model has no layer that computes what an op does."""
