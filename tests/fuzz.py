"""Calls of every op with arguments that nobody should pass, judged by the op's reference. Run in a child.

    python tests/fuzz.py FAMILY SEED BEGIN END

Each call depends on the seed and its number alone, so that one can be repeated. A call may give the reference's result
or raise an exception that names what is wrong. Another result ends the process with the call, and so does a call that
takes a minute. A crash leaves the call's number at the beginning of the output.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import inspect
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from sgljit_core import errors
from sgljit_core.families import loading
from sgljit_engines.agreement import difference
from sgljit_tools.testing.memory import memory_of
from sgljit_tools.testing.subject import described

# The exceptions that an op may raise for a wrong call. An OSError, a bare Exception or a SystemError is none.
REFUSALS = (TypeError, ValueError, IndexError, OverflowError, TimeoutError, RuntimeError, errors.SgljitError)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
NUMBERS = (None, 0, -1, 1, 7, 2**31, 2**63 - 1, 2**63, 0.0, -1.5, float("nan"), float("inf"), "", "eq", True)
OTHERS = (None, 0, -1, 2**63, 1.5, "text", [], (), object(), torch.nn.Parameter)
LARGEST = 1 << 18  # elements of a sample's tensors together: a call is to take less than a millisecond
SECONDS = 60


def tensors(rng: random.Random, tensor: torch.Tensor, others: list[torch.Tensor]) -> list[Callable[[], Any]]:
    """Other tensors, and things that are none."""
    return [
        lambda: tensor.to(rng.choice(DTYPES)),
        lambda: tensor[:0],
        lambda: tensor[..., :0],
        lambda: tensor.unsqueeze(rng.randint(0, tensor.dim())),
        tensor.flatten,
        lambda: tensor[0] if len(tensor) else tensor,
        lambda: tensor[: rng.randint(0, len(tensor))],
        lambda: tensor.flip(0),
        lambda: tensor * rng.choice([-1, 0, 2, 1000]),
        lambda: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor,
        lambda: tensor[..., ::2],
        lambda: tensor[:1].expand_as(tensor),
        lambda: torch.empty(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape).copy_(tensor),
        lambda: tensor.to("meta"),
        lambda: tensor.to_sparse() if tensor.is_floating_point() and tensor.dtype != torch.float8_e4m3fn else tensor,
        lambda: tensor.float().clone().requires_grad_(),  # another argument may be the same tensor
        lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor,
        lambda: rng.choice(others),
        lambda: rng.choice(OTHERS),
    ]


def mutate(rng: random.Random, arguments: dict[str, Any]) -> None:
    """Change up to two arguments, but for those that an op must trust: addresses, and what says that they are right."""
    trusting = any(memory_of(value) is not value for value in arguments.values())
    for name in rng.sample(sorted(arguments), k=min(len(arguments), rng.randint(0, 2))):
        value = arguments[name]
        if name in ("timeout", "check_indices") or memory_of(value) is not value:
            continue
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            others = [other for other in arguments.values() if isinstance(other, torch.Tensor)]
            arguments[name] = rng.choice(tensors(rng, value, others))()
        else:
            # A size that is too large leads out of memory that is only known by its address.
            arguments[name] = rng.choice(NUMBERS[:4] if trusting else NUMBERS)


def agree(got: Any, wanted: Any, rounded: torch.dtype | None = None) -> bool:
    """Whether two values are the same, up to a rounding: to their dtype, or to the one in between."""
    if isinstance(got, torch.Tensor) and (got.layout is not torch.strided or got.is_meta):
        return True
    if rounded is not None and got.dtype == wanted.dtype == torch.float32:
        got, wanted = got.to(rounded), wanted.to(rounded)
    return getattr(got, "dtype", None) == getattr(wanted, "dtype", None) and difference(got, wanted) is None


def judge(op: Any, arguments: dict[str, Any]) -> bool:
    """Call an op: whether it ran. Raises AssertionError where it ran and the reference gives something else."""
    memory = {name: memory_of(value) for name, value in arguments.items()}
    before = copy.deepcopy(memory)  # tensors that share memory still do
    try:
        result = op.function(**arguments)
    except REFUSALS as error:
        if not str(error):
            raise AssertionError("an error without a word") from error
        return False
    after = copy.deepcopy(memory)
    for name, value in memory.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and 0 not in value.stride():
            value.copy_(before[name])
    try:
        expected = op.reference(**arguments)
    except Exception:  # noqa: BLE001 - the reference is stricter here: nothing to compare with
        return True
    first = next(iter(arguments.values()))
    rounded = first.dtype if arguments.get("round_first") is True else None
    for name, value in memory.items():
        is_right = not isinstance(value, torch.Tensor) or agree(after[name], value, rounded)
        assert is_right, f"{name} differs from the reference"
    assert result is None or agree(result, expected), f"the result is {result}, not {expected}"
    return True


def size(sample: dict[str, Any]) -> int:
    return sum(value.numel() for value in map(memory_of, sample.values()) if isinstance(value, torch.Tensor))


def call(ops: list[tuple[Any, list[dict[str, Any]]]], seed: int, number: int) -> bool:
    """One call: whether it ran."""
    rng = random.Random(seed << 32 | number)
    op, samples = rng.choice(ops)
    sample = rng.choice(samples)
    addresses = {name: value for name, value in sample.items() if memory_of(value) is not value}
    arguments = {**copy.deepcopy({n: v for n, v in sample.items() if n not in addresses}), **addresses}
    if "timeout" in inspect.signature(op.reference).parameters:  # what is waited for may never come
        arguments["timeout"] = 0.001
    try:
        mutate(rng, arguments)
    except (RuntimeError, NotImplementedError):  # PyTorch does not make such a tensor
        return False
    told = described(arguments)
    try:
        return judge(op, arguments)
    except BaseException:
        print(f"\ncall {number} of seed {seed} is {op.name} of {told}", flush=True)
        raise


def main(family: str, seed: str, begin: str, end: str) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, chain=True)  # says where, and then the signal ends the process
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # torch.empty is NaN, whatever the memory holds
    torch.manual_seed(int(seed))
    declared = loading.load(family).declared().values()
    ops = []
    for op in declared:
        samples = list(op.samples(torch.device("cpu"))) if op.samples is not None else []
        if samples:
            ops.append((op, [sample for sample in samples if size(sample) <= LARGEST]))
    ran = 0
    with contextlib.suppress(OSError):
        os.lseek(1, 10, os.SEEK_SET)  # what is printed comes behind the call's number
    for number in range(int(begin), int(end)):
        with contextlib.suppress(OSError):  # a terminal or a pipe has no beginning
            os.pwrite(1, f"{number:9}\n".encode(), 0)
        signal.alarm(SECONDS)
        ran += call(ops, int(seed), number)
    signal.alarm(0)
    print(f"\n{ran} ran")


if __name__ == "__main__":
    main(*sys.argv[1:])
