"""TensorMatcher against the rules written down once more, in plain Python: 100 000 random cases.

Hypothesis chooses what a batch of cases is made of; the batch goes through C++ in one call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

MAX_RANK = 8
CPU, CUDA = 1, 2
FLOAT, HALF, INT32, INT64 = (2, 32, 1), (2, 16, 1), (0, 32, 1), (0, 64, 1)
DTYPES = [FLOAT, HALF, INT32, INT64, (4, 16, 1), (2, 32, 4), (6, 8, 1), (77, 3, 9)]
DEVICES = [(CPU, 0), (CUDA, 0), (CUDA, 1), (3, 0), (99, -5)]

# The modes of with_dtype and with_device, as matcher_fuzz.cpp numbers them: (symbol?, value, options).
DTYPE_MODES: list[tuple[bool, Any, tuple]] = [
    (False, None, ()),
    (False, None, (FLOAT,)),
    (False, None, (INT32, INT64)),
    (True, None, ()),
    (True, None, (FLOAT, HALF)),
    (False, INT32, ()),
    (False, HALF, (FLOAT, HALF)),
]
DEVICE_MODES: list[tuple[bool, Any, tuple]] = [
    (False, None, ()),
    (False, None, (CUDA,)),
    (False, None, (CUDA, CPU)),
    (True, None, ()),
    (True, None, (CUDA, CPU)),
    (False, (CUDA, 1), ()),
]


@dataclass
class Tensor:
    shape: list[int]
    strides: list[int] | None
    dtype: tuple[int, int, int]
    device: tuple[int, int]

    def row(self) -> list[int]:
        strides = self.strides or []
        return [
            len(self.shape),
            *padded(self.shape),
            *padded(strides),
            int(self.strides is not None),
            *self.dtype,
            *self.device,
        ]

    def stride(self, index: int) -> int:
        if self.strides is not None:
            return self.strides[index]
        return signed(product(self.shape[index + 1 :]))

    def is_contiguous(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        return all(
            size == 1 or self.strides[i] % 2**64 == product(self.shape[i + 1 :]) % 2**64
            for i, size in enumerate(self.shape)
        )


@dataclass
class Pattern:
    """An entry of a shape is (0, number), where -1 is any, or (symbol, 0)."""

    shape: list[tuple[int, int]]
    strides: list[tuple[int, int]] | None
    dtype_mode: int
    device_mode: int

    def row(self) -> list[int]:
        entries = [*padded(self.shape, (0, 0)), *padded(self.strides or [], (0, 0))]
        head = [len(self.shape), int(self.strides is not None), self.dtype_mode, self.device_mode]
        return head + [number for entry in entries for number in entry]


@dataclass
class Symbols:
    sizes: dict[int, int] = field(default_factory=dict)
    dtype: Any = None
    device: Any = None


class MismatchError(Exception):
    pass


def require(condition: bool) -> None:
    if not condition:
        raise MismatchError


def match_size(entry: tuple[int, int], value: int, symbols: Symbols) -> None:
    symbol, literal = entry
    if symbol:
        require(symbols.sizes.setdefault(symbol, value) == value)
    else:
        require(literal in (-1, value))


def match(pattern: Pattern, tensor: Tensor, symbols: Symbols) -> None:
    """The rules. They take effect in this order, and what is bound before a mismatch stays bound."""
    require(len(tensor.shape) == len(pattern.shape))
    for entry, size in zip(pattern.shape, tensor.shape, strict=True):
        match_size(entry, size, symbols)
    if pattern.strides is None:
        require(tensor.is_contiguous())
    else:
        for i, entry in enumerate(pattern.strides):
            is_bound = entry[0] in symbols.sizes if entry[0] else entry[1] != -1
            if tensor.shape[i] != 1 or not is_bound:
                match_size(entry, tensor.stride(i), symbols)
    uses_symbol, value, options = DTYPE_MODES[pattern.dtype_mode]
    require(value in (None, tensor.dtype))
    require(not uses_symbol or symbols.dtype in (None, tensor.dtype))
    require(not options or tensor.dtype in options)
    if uses_symbol:
        symbols.dtype = tensor.dtype
    uses_symbol, value, options = DEVICE_MODES[pattern.device_mode]
    require(value in (None, tensor.device))
    require(not uses_symbol or symbols.device in (None, tensor.device))
    require(not options or tensor.device[0] in options)
    if uses_symbol:
        symbols.device = tensor.device


def expected(case: list[tuple[Pattern, list[Tensor]]]) -> list[int]:
    symbols = Symbols()
    accepted = 0
    try:
        for pattern, tensors in case:
            for tensor in tensors:
                match(pattern, tensor, symbols)
                accepted += 1
    except MismatchError:
        pass
    result = [accepted]
    for symbol in (1, 2, 3):
        result += [int(symbol in symbols.sizes), symbols.sizes.get(symbol, 0)]
    return result


def random_case(rng: random.Random, numbers: list[int], likely: float) -> list[tuple[Pattern, list[Tensor]]]:
    """Patterns, and tensors that mostly fit them: ``likely`` is how often each part does."""
    values = {symbol: rng.choice(numbers) for symbol in (1, 2, 3)}
    dtype, device = rng.choice(DTYPES), rng.choice(DEVICES)
    case = []
    for _ in range(2):
        rank = rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 8])
        pattern = Pattern(
            shape=[random_entry(rng, numbers) for _ in range(rank)],
            strides=[random_entry(rng, numbers) for _ in range(rank)] if rng.random() < 0.6 else None,
            dtype_mode=random_mode(rng, [mode[1:] for mode in DTYPE_MODES], dtype, dtype, likely),
            device_mode=random_mode(rng, [mode[1:] for mode in DEVICE_MODES], device, device[0], likely),
        )
        tensors = []
        for _ in range(2):
            shape = [random_value(rng, entry, values, numbers, likely) for entry in pattern.shape]
            if rng.random() > likely:
                shape = [rng.choice(numbers) for _ in range(rng.randrange(MAX_RANK + 1))]
            strides: list[int] | None
            if rng.random() < 0.1:
                strides = None
            elif pattern.strides is not None and len(shape) == rank:
                strides = [random_value(rng, entry, values, numbers, likely) for entry in pattern.strides]
            else:
                strides = [signed(product(shape[i + 1 :])) for i in range(len(shape))]
                if strides and rng.random() > likely:
                    strides[rng.randrange(len(strides))] = rng.choice(numbers)
            tensors.append(
                Tensor(
                    shape,
                    strides,
                    dtype if rng.random() < likely else rng.choice(DTYPES),
                    device if rng.random() < likely else rng.choice(DEVICES),
                )
            )
        case.append((pattern, tensors))
    return case


def random_mode(rng: random.Random, modes: list, value: Any, option: Any, likely: float) -> int:
    fits = [
        i for i, (only, options) in enumerate(modes) if only in (None, value) and (not options or option in options)
    ]
    return rng.choice(fits) if rng.random() < likely else rng.randrange(len(modes))


def random_entry(rng: random.Random, numbers: list[int]) -> tuple[int, int]:
    return rng.choice([(1, 0), (2, 0), (3, 0), (0, -1), (0, rng.choice(numbers))])


def random_value(rng: random.Random, entry: tuple[int, int], values: dict, numbers: list[int], likely: float) -> int:
    if rng.random() > likely or entry == (0, -1):
        return rng.choice(numbers)
    return values[entry[0]] if entry[0] else entry[1]


def padded(values: list, filler: Any = 0) -> list:
    return [*values, *[filler] * (MAX_RANK - len(values))]


def product(values: list[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@pytest.fixture(scope="module")
def matcher(build):
    return build("matcher_fuzz.cpp")


INTEGERS = st.one_of(st.integers(-3, 8), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    numbers=st.lists(INTEGERS, min_size=1, max_size=6),
    likely=st.sampled_from([0.5, 0.9, 0.98, 1.0]),
)
@settings(
    deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_accepts_what_the_rules_accept(matcher, seed: int, numbers: list[int], likely: float) -> None:
    """A thousand random cases each time."""
    rng = random.Random(seed)
    cases = [random_case(rng, numbers, likely) for _ in range(1000)]
    rows = [
        [number for pattern, tensors in case for part in (pattern, *tensors) for number in part.row()] for case in cases
    ]
    results = torch.full((len(cases), 7), -1)
    matcher.run(torch.tensor(rows), results)
    wrong = [
        (case, want, got)
        for case, want, got in zip(cases, map(expected, cases), results.tolist(), strict=True)
        if want != got
    ]
    assert not wrong, min(wrong, key=lambda item: len(repr(item)))
