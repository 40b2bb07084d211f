"""The ops in plain Python for flags in host memory, to compare the kernels with."""

from __future__ import annotations

import time

import torch


def stream_wait_value(
    flag: torch.Tensor,
    value: int,
    condition: str = "eq",
    mode: str = "auto",
    timeout: float | None = None,
    device: str | None = None,
) -> None:
    """Poll until the flag meets the condition."""
    deadline = None if timeout is None else time.monotonic() + timeout
    first = (0,) * flag.dim()
    while not is_met(int(flag[first]), value, condition, 8 * flag.element_size()):
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"the flag is still {int(flag[first])}")
        time.sleep(1e-4)


stream_wait_value.as_sampled = {"value": "a wait for another never ends"}  # type: ignore[attr-defined]


def stream_write_value(flag: torch.Tensor, value: int, mode: str = "auto", device: str | None = None) -> None:
    """Set the flag."""
    bits = 8 * flag.element_size()
    flag[(0,) * flag.dim()] = (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def is_met(flag: int, value: int, condition: str, bits: int) -> bool:
    """Whether the condition holds for numbers of so many bits."""
    ones = (1 << bits) - 1
    if condition == "eq":
        return flag & ones == value & ones
    if condition == "ge":
        return (flag - value) & ones < 1 << (bits - 1)
    if condition == "and":
        return flag & value & ones != 0
    return ~(flag | value) & ones != 0
