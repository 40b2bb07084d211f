"""The same call with its tensors laid out differently, and with other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sgljit_engines.agreement import map_tensors

from .memory import memory_of, tensors_of

Arguments = dict[str, Any]

INTEGERS = (torch.int32, torch.int64)  # of indices, which other values would lead elsewhere
LARGEST = 1 << 18  # elements of a tensor of another size
SIZES = (0, 1, 2, 3, *(2**power + step for power in range(2, 13) for step in (-1, 0, 1)))


def _rows_apart(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] + gap))[..., : tensor.shape[-1]].copy_(tensor)


def _at_offset(tensor: torch.Tensor, skipped: int) -> torch.Tensor:
    return tensor.new_empty(tensor.numel() + skipped)[skipped:].view(tensor.shape).copy_(tensor)


def _columns_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(tensor.shape[::-1]).permute(*reversed(range(tensor.dim()))).copy_(tensor)


def _overlapping_rows(tensor: torch.Tensor) -> torch.Tensor:
    rows, width = tensor.shape
    return tensor.flatten()[: rows + width - 1].clone().as_strided((rows, width), (1, 1))


# How, what keeps the values, and for which numbers of dimensions.
_LAYOUTS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], bool, range]] = [
    ("rows apart, at no aligned stride", lambda tensor: _rows_apart(tensor, 3), True, range(2, 9)),
    ("rows apart, at twice their size", lambda tensor: _rows_apart(tensor, tensor.shape[-1]), True, range(2, 9)),
    ("an offset of one element", lambda tensor: _at_offset(tensor, 1), True, range(1, 9)),
    ("an offset of 8 bytes", lambda tensor: _at_offset(tensor, max(1, 8 // tensor.itemsize)), True, range(1, 9)),
    ("every second element", lambda one: one.new_empty((*one.shape, 2))[..., 0].copy_(one), True, range(1, 9)),
    ("columns first", _columns_first, True, range(2, 9)),
    ("a stride of 0", lambda tensor: tensor[:1].clone().expand_as(tensor), False, range(1, 9)),
    ("overlapping rows", _overlapping_rows, False, range(2, 3)),
]


def layouts(arguments: Mapping[str, Any], mutates: Collection[str]) -> Iterator[tuple[str, Arguments]]:
    """The same call with one tensor laid out differently, or with all of them.

    Layouts in which elements share memory change the values: only tensors of numbers that the op reads get them.
    """
    for text, lay_out, keeps_values, dimensions in _LAYOUTS:
        chosen = {
            name: lay_out(tensor)
            for name, tensor in arguments.items()
            if isinstance(tensor, torch.Tensor)
            and memory_of(tensor) is tensor
            and not tensor.is_pinned()
            and tensor.numel() > 0
            and tensor.dim() in dimensions
            and (keeps_values or (name not in mutates and tensor.dtype not in INTEGERS))
        }
        for name, tensor in chosen.items():
            yield f"{name} with {text}", {**arguments, name: tensor}
        if len(chosen) > 1:
            yield f"all with {text}", {**arguments, **chosen}


def sizes(samples: list[Arguments]) -> Iterator[tuple[str, Arguments]]:
    """Calls of other sizes: no row, one, and around every power of two, each with one of the samples.

    All dimensions that a size divides become multiples of the other size, so that tensors still fit each other; but
    for those that stand beside that size in a tensor, where a multiple is chance. No call has a tensor of more than
    ``LARGEST`` elements, nor on the CPU more than 1025 rows, which take Triton's interpreter minutes. A sample with
    indices or addresses has none: they would lead elsewhere.
    """
    resizable = [s for s in samples if not any(t.dtype in INTEGERS or memory_of(t) is not t for _, t in tensors_of(s))]
    for number, new in enumerate(SIZES):
        for sample in resizable if new < 2 else resizable[number % len(resizable) :][:1] if resizable else ():
            shapes = [tensor.shape for _, tensor in tensors_of(sample)]
            rows = {t.shape[0] for _, t in tensors_of(sample) if t.dim() > 1 and t.device.type == "cpu" and new > 1025}
            for old in sorted({size for shape in shapes for size in shape if size > 1} - rows - {new}):
                news = _news(shapes, old, new)
                if all(math.prod(news.get(size, size) for size in shape) <= LARGEST for shape in shapes):
                    resized = partial(_resized, news)
                    yield f"{old} made {new}", {name: map_tensors(resized, one) for name, one in sample.items()}


def _news(shapes: Collection[torch.Size], old: int, new: int) -> dict[int, int]:
    """The sizes that change, and the new one of each."""
    sizes = {size for shape in shapes for size in shape}
    beside = {size for shape in shapes if old in shape for size in shape} - {old}
    return {size: size // old * new for size in sizes - beside if size > 0 and size % old == 0}


def _resized(news: Mapping[int, int], value: torch.Tensor) -> torch.Tensor:
    is_byte = value.itemsize == 1  # of which torch selects no floating ones
    chosen = value.view(torch.uint8) if is_byte else value
    for dimension, size in enumerate(value.shape):
        if size in news:
            chosen = chosen.index_select(dimension, torch.arange(news[size], device=value.device) % size)
    return chosen.view(value.dtype)
