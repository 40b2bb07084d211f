"""How is a call of an op described, so that what it asks for can be built ahead? By tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS = -1  # in a shape: the number of tokens; every one that may come is tried


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without memory, as an argument of a call.

    >>> TensorSpec((TOKENS, 4096), "bfloat16")

    Attributes:
        shape: the sizes; ``TOKENS`` stands for the number of tokens.
        dtype: the name of a torch.dtype, such as "bfloat16".
        strides: in elements; by default the tensor has no gaps.
        offset: elements before the first one in its memory, as in a view.
        pinned: whether it is in pinned host memory, wherever the call's device is.

    Raises:
        ValueError: a tensor without gaps has ``TOKENS`` after its first dimension, or the strides are not as many as
            the dimensions.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    offset: int = 0
    pinned: bool = False

    def __post_init__(self) -> None:
        if self.strides is None and TOKENS in self.shape[1:]:
            raise ValueError(f"TensorSpec: pass strides where TOKENS is not the first dimension: {self.shape}")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"TensorSpec: expected a stride for each dimension of {self.shape}, got {self.strides}")


@dataclass(frozen=True)
class Addresses:
    """A tensor of uint64, on the call's device or on the CPU, with the addresses of ``count`` tensors like ``of``."""

    of: TensorSpec
    count: int
    on_device: bool = False
