"""Kinds of scales and the quantisation in PyTorch, for the benches of all ops with a quantised result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sgljit_core import ops
from sgljit_quant import column_major_scales, packed_scales

GROUP, EXPERTS = 128, 8


@dataclass(frozen=True)
class Kind:
    """The scales of a result, and its dtype.

    Attributes:
        op: the op of sgljit-quant for it.
        scales: of "tensor", "given", "token", "group", "powers" or "packed", four exponents to an int32.
    """

    op: str
    scales: str
    dtype: torch.dtype = torch.float8_e4m3fn

    @property
    def largest(self) -> int:
        """The largest magnitude of the result."""
        return 448 if self.dtype.is_floating_point else 127

    @property
    def is_masked(self) -> bool:
        """Whether only counted rows of experts are quantised."""
        return self.op.startswith("masked")

    @property
    def options(self) -> dict[str, bool]:
        """The options of an op that asks for these scales."""
        if self.scales == "given":
            return {"is_static": True}
        return {"scale_ue8m0": True} if self.scales in ("powers", "packed") else {}

    @property
    def run(self) -> Callable[..., None]:
        """The op of sgljit-quant."""
        return functools.partial(getattr(ops["quant"], self.op), **self.options)

    def counts(self, tokens: int) -> torch.Tensor:
        """How many rows of each expert are counted; of one that has all, unless they are masked."""
        experts = min(EXPERTS, tokens) if self.is_masked else 1
        return torch.arange(1, experts + 1, dtype=torch.int32) * (tokens // experts) // experts

    def of_experts(self, x: torch.Tensor) -> torch.Tensor:
        """The rows by experts, if they are masked."""
        return x.view(len(self.counts(len(x))), -1, x.shape[-1]) if self.is_masked else x

    def outputs(self, tokens: int, size: int, device: str) -> tuple[torch.Tensor, ...]:
        """A result and its scales; and the counts, if rows are masked."""
        if self.is_masked:
            counts = self.counts(tokens).to(device)
            q = self.of_experts(torch.empty(tokens, size, dtype=self.dtype, device=device))
            return q, column_major_scales(q.shape[1], size // GROUP, device, experts=len(counts)), counts
        q = torch.empty(tokens, size, dtype=self.dtype, device=device)
        if self.scales == "packed":
            return q, packed_scales(tokens, size, device)
        shape = {"tensor": (1,), "given": (1,), "token": (tokens, 1)}.get(self.scales, (tokens, size // GROUP))
        return q, torch.full(shape, 8 / self.largest, device=device)

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` by groups that have a scale."""
        return x.unflatten(-1, (-1, GROUP)) if self.scales in ("group", "powers", "packed") else x

    def eager(self, x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, _counts: torch.Tensor | None = None) -> None:
        """The quantisation in plain PyTorch; packed scales need whole words."""
        x = self.grouped(x.float())
        scale = s
        if self.scales != "given":
            largest = x.abs().amax() if self.scales == "tensor" else x.abs().amax(-1, keepdim=True)
            scale = largest / self.largest
            if self.scales in ("powers", "packed"):
                exponents = scale.log2().ceil()
                scale = exponents.exp2()
            if self.scales == "packed":
                s.copy_((exponents.squeeze(-1) + 127).to(torch.uint8).view(torch.int32))
            else:
                s.copy_(scale.reshape(s.shape))
        scaled = x * (1 / scale)
        scaled = scaled if self.dtype.is_floating_point else scaled.round()
        q.copy_(scaled.clamp(-self.largest, self.largest).flatten(len(q.shape) - 1).to(self.dtype))

    def check(
        self,
        exact: torch.Tensor,
        q: torch.Tensor,
        s: torch.Tensor,
        counts: torch.Tensor | None = None,
        *,
        slack: float = 0,
    ) -> None:
        """Check that a kernel computes the op: a figure of another computation would mean nothing.

        SGLang's kernel of int8 cuts off where ours rounds.

        Args:
            exact: what is quantised.
            counts: of the rows that are checked; all, if there are none.
            slack: the relative error of what the kernel quantises.
        """
        if counts is not None:
            is_counted = torch.arange(q.shape[1], device=q.device) < counts[:, None]
            exact, q, s = exact[is_counted], q[is_counted], s[is_counted]
        if self.scales == "packed":
            exponents = s.clone(memory_format=torch.contiguous_format).view(torch.uint8)[:, : q.shape[-1] // GROUP]
            s = (exponents.float() - 127).exp2()
        exact, found = self.grouped(exact), self.grouped(q.double())
        scale = s.unsqueeze(-1) if exact.ndim > q.ndim else s
        if self.scales == "given":
            exact = exact.clamp(-self.largest * scale, self.largest * scale)
        bound = exact.abs() / 15 + scale * 2**-9 if self.dtype.is_floating_point else scale * 1.01
        assert ((found * scale - exact).abs() <= bound + exact.abs() * slack).all(), (self.op, self.scales)
