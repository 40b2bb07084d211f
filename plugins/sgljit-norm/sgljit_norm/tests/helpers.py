"""What the tests of both devices share: arguments of every op, guard zones, errors against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from sgljit_core import ops
from sgljit_norm import reference
from sgljit_norm.plugin import FAMILY

Arguments = dict[str, Any]

OPS = [op for op in FAMILY.declared() if "quant" not in op]  # those that quantise have tests of their own
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MUTATES = {op.name: op.mutates for op in FAMILY.declared().values()}

_GUARD = 7.0
_GUARD_ROWS = 2
_GUARD_COLUMNS = 8


class Guarded:
    """A copy of a tensor inside a larger one whose margins must not change."""

    def __init__(self, values: torch.Tensor, offset: int = _GUARD_COLUMNS) -> None:
        rows, columns = len(values), values[0].numel() if len(values) else values.shape[1:].numel()
        height, width = rows + 2 * _GUARD_ROWS, columns + 2 * _GUARD_COLUMNS
        self._buffer = torch.full((height, width), _GUARD, dtype=values.dtype, device=values.device)
        self._inside = slice(_GUARD_ROWS, _GUARD_ROWS + rows), slice(offset, offset + columns)
        self.tensor = self._buffer[self._inside].unflatten(1, values.shape[1:])
        self.tensor.copy_(values)

    def assert_margins_untouched(self) -> None:
        margins = self._buffer.clone()
        margins[self._inside] = _GUARD
        assert torch.equal(margins, torch.full_like(margins, _GUARD))


def make(
    op: str, rows: int, size: int, dtype: torch.dtype, device: torch.device | str, heads: tuple[int, int] = (3, 2)
) -> Arguments:
    """Arguments of any op: rows of ``size`` elements, which are heads where the op takes q and k."""
    torch.manual_seed(rows * 100_003 + size)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    if op == "fused_inplace_qknorm_across_heads":
        sizes = size, max(1, size // 4 * 2)
        return {
            "q": randn(rows, sizes[0]),
            "k": randn(rows, sizes[1]),
            "q_weight": randn(sizes[0]),
            "k_weight": randn(sizes[1]),
        }
    if "qknorm" in op:
        q, k = (randn(rows, number, size) for number in heads)
        return {"q": q, "k": k, "q_weight": randn(size), "k_weight": randn(size)}
    arguments: Arguments = {"input": randn(rows, size)}
    if "_add_" in op:
        arguments["residual"] = randn(rows, size)
    arguments["weight"] = randn(size)
    if "norm_add_" in op:
        arguments["next_weight"] = randn(size)
    if op == "layernorm":
        arguments["bias"] = randn(size)
    return arguments


def data_of(op: str, arguments: Arguments) -> list[torch.Tensor]:
    """The tensors of rows among the arguments."""
    return [arguments[name] for name in MUTATES[op] if arguments.get(name) is not None]


def written(op: str, arguments: Arguments) -> tuple[str, ...]:
    """Which arguments the call writes to."""
    if "out" not in MUTATES[op]:
        return MUTATES[op]
    return ("input",) if arguments.get("out") is None else ("out",)


def clones(arguments: Arguments) -> Arguments:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def expected(op: str, arguments: Arguments) -> dict[str, torch.Tensor]:
    """What is to be written, unrounded."""
    wide = {
        name: value.double() if isinstance(value, torch.Tensor) else value for name, value in clones(arguments).items()
    }
    getattr(reference, op)(**wide)
    return {name: wide[name] for name in written(op, arguments)}


def _pytorch_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x, weight.shape, weight, eps)


def pytorch(op: str, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The same from PyTorch's own kernels, in the arguments' dtype."""
    values = dict(arguments)
    head_dim = values.pop("head_dim", 0)
    eps = values.pop("eps", 1e-5 if op == "layernorm" else 1e-6)
    for name in ("weight", "next_weight", "q_weight", "k_weight"):
        if op.startswith("gemma") and name in values:
            values[name] = 1 + values[name]
    if "qknorm" in op:
        result = {}
        for name in ("q", "k"):
            x, weight = values[name], values[f"{name}_weight"]
            rows = x.unflatten(-1, (-1, head_dim)) if head_dim else x
            result[name] = _pytorch_rmsnorm(rows, weight, eps).reshape(x.shape)
        return result
    if "_add_" in op:
        added = _pytorch_rmsnorm(values["input"], values["weight"], eps) if "norm_add_" in op else values["input"]
        total = added + values["residual"]
        return {"input": _pytorch_rmsnorm(total, values.get("next_weight", values["weight"]), eps), "residual": total}
    if op == "layernorm":
        normed = layer_norm(values["input"], values["weight"].shape, values["weight"], values.get("bias"), eps)
    else:
        normed = _pytorch_rmsnorm(values["input"], values["weight"], eps)
    return {written(op, arguments)[0]: normed}


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm; infinite where an element was never written."""
    if got.isnan().any():
        return float("inf")
    difference, size = (got.double() - wanted).norm(), wanted.norm()
    return float(difference / size) if size else float(difference)


def assert_accurate(
    got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], from_pytorch: dict[str, torch.Tensor]
) -> None:
    """No worse than PyTorch's own kernels in that dtype; of float32, or to two units in the last place."""
    for name, tensor in got.items():
        if tensor.numel() == 0:
            continue
        # The order of a sum may flip a rare rounding, and errors of float32 may go with those of the result's dtype.
        limit = relative_error(from_pytorch[name], wanted[name]) * 1.002
        if tensor.dtype == torch.float32:
            limit = max(limit, 2 * torch.finfo(torch.float32).eps)
        assert relative_error(tensor, wanted[name]) <= limit, name


def check(op: str, arguments: Arguments, offset: int = _GUARD_COLUMNS) -> None:
    """Call the op on copies with guard zones, and compare with float64; what is only read must stay.

    Args:
        offset: where copies begin, in elements after an aligned address.
    """
    wanted, from_pytorch = expected(op, arguments), pytorch(op, arguments)
    call = clones(arguments)
    guarded = {name: Guarded(arguments[name], offset) for name in written(op, arguments)}
    call |= {name: guard.tensor for name, guard in guarded.items()}
    getattr(ops["norm"], op)(**call)
    for guard in guarded.values():
        guard.assert_margins_untouched()
    for name, value in arguments.items():
        assert name in guarded or not isinstance(value, torch.Tensor) or torch.equal(call[name], value)
    assert_accurate({name: guard.tensor for name, guard in guarded.items()}, wanted, from_pytorch)


def poisoned(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, float("nan"))


def check_both(op: str, arguments: Arguments, offset: int = _GUARD_COLUMNS) -> None:
    """``check``, and where the op has ``out``, also into that."""
    check(op, arguments, offset)
    if "out" in MUTATES[op]:
        check(op, {**arguments, "out": poisoned(arguments["input"])}, offset)


SPECIALS: dict[str, Callable[[torch.Tensor], object]] = {
    "1e4": lambda x: x.uniform_(-1e4, 1e4),
    "tiny": lambda x: x.mul_(1e-4),
    "vanishing": lambda x: x.mul_(1e-12),
    "zeros": lambda x: x.zero_(),
    "one outlier": lambda x: x[..., x.shape[-1] // 2].fill_(6e4),
    "far from zero": lambda x: x.add_(100),
}


def check_non_finite(op: str, arguments: Arguments, value: float) -> None:
    """NaN and infinity go where they go in float64, and stay in their row.

    PyTorch's own kernels do the same on the CPU, and on CUDA for rows of whole loads; of other rows with an infinity
    its kernel on CUDA makes every element NaN.
    """
    for tensor in data_of(op, arguments):
        tensor[1, ..., 5] = value
    wanted = expected(op, arguments)
    if data_of(op, arguments)[0].shape[-1] % 8 == 0:
        for name, tensor in pytorch(op, arguments).items():
            assert torch.equal(tensor.isnan(), wanted[name].isnan()), name
    getattr(ops["norm"], op)(**arguments)
    for name, tensor in wanted.items():
        got = arguments[name]
        assert torch.equal(got.isnan(), tensor.isnan()), name
        assert torch.equal(got[1].nan_to_num(0), tensor[1].to(got.dtype).nan_to_num(0)), name
