"""What can go wrong in what adapters share, besides what the core raises?"""

from __future__ import annotations

from sgljit_core.errors import SgljitError, TensorMatchError


class UnsupportedEngineError(SgljitError, RuntimeError):
    """An engine is not installed, or is of a version that its adapter was not tested with."""


class InexactError(TensorMatchError):
    """With ``SGLJIT_ENGINES=exact``: an op is not shown to give the bits of the engine's own code."""


class ModelConfigError(SgljitError, ValueError):
    """A ``config.json`` does not give the shapes of a model, or the ranks cannot share its heads."""


class DisagreementError(SgljitError, RuntimeError):
    """With ``SGLJIT_SHADOW``: an op's results differ from those of the engine's own code by more than its bound."""

    def __init__(self, op: str, call: int, difference: str, path: object) -> None:
        super().__init__(
            f"in call {call} a result {difference}. Here the reference is the engine's own code. torch.load reads the "
            f"arguments, both results and the versions from {path}. CUDA graphs keep the op: capture them anew"
        )
        self.op, self.difference, self.path = op, difference, path

    @property
    def cause(self) -> str:
        return f"a result {self.difference}"


__all__ = ["DisagreementError", "InexactError", "ModelConfigError", "UnsupportedEngineError"]
