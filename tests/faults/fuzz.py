"""Calls of every op with arguments that nobody should pass, judged by the op's reference. Run in a child.

    python tests/faults/fuzz.py SEED CALLS FAMILY

A call may raise an exception that names what is wrong, or give the reference's result. It prints the number of calls
and of those that ran; a wrong result ends it with the call.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from sgljit_core import errors
from sgljit_core.families import discovery

# The exceptions that an op may raise for a wrong call. An OSError, a bare Exception or a SystemError is none.
REFUSALS = (TypeError, ValueError, IndexError, OverflowError, TimeoutError, RuntimeError, errors.SgljitError)
TRUSTED = {"k_ptr_dst", "v_ptr_dst", "k_ptr_src", "v_ptr_src", "ptr_dst", "ptr_src"}  # addresses, and their strides
SECONDS = 120


def changes(rng: random.Random, tensor: torch.Tensor) -> list[Callable[[], Any]]:
    """Other tensors, and things that are none."""
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
    return [
        lambda: tensor.to(rng.choice(dtypes)),
        lambda: tensor[:0],
        lambda: tensor[..., :0],
        lambda: tensor.unsqueeze(rng.randint(0, tensor.dim())),
        tensor.flatten,
        lambda: tensor[0] if len(tensor) else tensor,
        lambda: tensor[: rng.randint(0, len(tensor))],
        lambda: tensor.flip(0).contiguous(),
        lambda: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor,
        lambda: tensor[..., ::2],
        lambda: tensor[:1].expand_as(tensor),
        lambda: torch.empty(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape).copy_(tensor),
        lambda: tensor.to("meta"),
        lambda: tensor.to_sparse() if tensor.is_floating_point() and tensor.dtype != torch.float8_e4m3fn else tensor,
        lambda: tensor.float().requires_grad_(),
        lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor,
        lambda: rng.choice([None, 0, -1, 2**63, 1.5, "text", [tensor], (), object(), torch.nn.Parameter]),
    ]


def mutate(rng: random.Random, arguments: dict[str, Any]) -> None:
    """Change up to two arguments."""
    for name in rng.sample(sorted(arguments), k=min(len(arguments), rng.randint(0, 2))):
        value = arguments[name]
        if name in TRUSTED or any(known in arguments for known in TRUSTED):
            continue
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            arguments[name] = rng.choice(changes(rng, value))()
        elif name != "timeout":
            others = [None, 0, -1, 1, 7, 2**31, 2**63 - 1, 2**63, 0.0, -1.5, float("nan"), float("inf"), "", "eq", True]
            arguments[name] = rng.choice(others)


def agree(got: Any, wanted: Any, dtype: torch.dtype) -> bool:
    if not isinstance(got, torch.Tensor):
        return bool(got == wanted)
    if got.layout is not torch.strided or got.is_meta:
        return True
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, 0.0)
    if dtype == torch.float8_e4m3fn:
        tolerance = 0.07  # one unit: a quotient may fall on the other side of a tie
    a, b = got.double(), wanted.double()
    return got.shape == wanted.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def judge(op: Any, arguments: dict[str, Any]) -> bool:
    """Call an op: whether it ran. Raises AssertionError where it ran and the reference gives something else."""
    wanted = {n: v.detach().clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    error: BaseException | None = None
    try:
        result = op.function(**arguments)
    except REFUSALS as refusal:
        error = refusal
    if error is not None:
        assert str(error), f"an error without a word: {type(error).__name__}"
        return False
    try:
        expected = op.reference(**wanted)
    except Exception:  # noqa: BLE001 - the reference is stricter here: nothing to compare with
        return True
    shared = any(isinstance(v, torch.Tensor) and 0 in v.stride() and v.numel() > 1 for v in arguments.values())
    if shared:
        return True
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and not agree(value, wanted[name], value.dtype):
            raise AssertionError(f"{name} differs from the reference")
    assert result is None or agree(result, expected, getattr(result, "dtype", torch.int32))
    return True


def main(seed: str, calls: str, family: str) -> None:
    rng = random.Random(int(seed))
    torch.manual_seed(int(seed))
    claims = discovery.installed()[family]
    ops = [op for op in discovery.load(family, claims).declared().values() if op.samples is not None]
    samples = {op.name: list(op.samples(torch.device("cpu"))) for op in ops}
    ran = 0
    for number in range(int(calls)):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        op = rng.choice(ops)
        sample = rng.choice(samples[op.name])
        arguments = {n: v.clone() if isinstance(v, torch.Tensor) and n not in TRUSTED else v for n, v in sample.items()}
        if op.name == "stream_wait_value":
            arguments["timeout"] = 0.001
        try:
            mutate(rng, arguments)
        except (RuntimeError, NotImplementedError):  # PyTorch does not make such a tensor
            continue
        try:
            ran += judge(op, arguments)
        except BaseException:
            print(f"call {number} of seed {seed}: {op.name} of", {n: describe(v) for n, v in arguments.items()})
            raise
    faulthandler.cancel_dump_traceback_later()
    print(f"{calls} calls, {ran} ran")


def describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return (
        f"{value.dtype} {list(value.shape)} {list(value.stride()) if value.layout is torch.strided else value.layout}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
