"""Which kernels do the row operations of the headers launch, and which loops do they run? For building them ahead.

``RowMapping`` stands for a ``host::RowMap`` (``sgl_kernel/row_map.h``), ``RowReduction`` for a ``host::RowReduce``
(``sgl_kernel/row_reduce.h``). The layouts are those of the table in ``sgl_kernel/impl/row_layout.h``; a test compares
both.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sgljit_core import paths

from .arguments import CppType, make_cpp_args

if TYPE_CHECKING:
    import torch

Layout: TypeAlias = "tuple[int, int]"  # threads that share a row, threads of a block

WORD = 16  # bytes of the widest load
WARP = 32
MAX_VECTORS = 4096  # of a row that is held in registers


@dataclass(frozen=True)
class RowMapping:
    """A row map of a family: the template arguments of its ``host::RowMap``, and its functor's file.

    Attributes:
        file: relative to ``csrc``.
        functor: with its namespace, as the compiler spells it.
        inputs, outputs: how many of each; shared rows are inputs.
    """

    file: str
    functor: str
    inputs: int
    outputs: int = 1

    def kernel(
        self,
        dtype: torch.dtype,
        output_dtype: torch.dtype | None = None,
        *,
        elements: int | None = None,
        has_tail: bool = False,
    ) -> tuple[Any, ...]:
        """The arguments of ``build_variant`` for tensors without gaps, aligned to whole loads.

        Args:
            dtype, output_dtype: of the inputs, of the outputs; one for both if no other is given.
            elements: of a load, for operands that allow fewer than whole loads.
            has_tail: whether ``elements`` do not divide a row, or all rows together where none has gaps.
        """
        output_dtype = output_dtype or dtype
        elements = elements or _whole(dtype.itemsize, output_dtype.itemsize)
        counts = (CppType(self.functor), self.inputs, self.outputs)
        return self.file, "device::row_map", *counts, elements, has_tail, dtype, output_dtype

    def loop(self, dtype: torch.dtype, output_dtype: torch.dtype | None = None) -> tuple[str, str]:
        """The arguments of ``build_deferred`` for the CPU."""
        counts = (CppType(self.functor), self.inputs, self.outputs)
        return self.file, f"host::cpu::row_map<{make_cpp_args(*counts, dtype, output_dtype or dtype)}>"


@dataclass(frozen=True)
class RowReduction:
    """A row reduction of a family: the template arguments of its ``host::RowReduce``, and its functor's file.

    Attributes:
        file: relative to ``csrc``.
        functor: with its namespace, as the compiler spells it.
        inputs, shared, outputs: how many of each.
        two_passes: whether the functor has a second pass.
    """

    file: str
    functor: str
    inputs: int
    shared: int = 0
    outputs: int = 1
    two_passes: bool = False

    @property
    def work(self) -> int:
        """The number of its ``sgl::RowWork``."""
        return 2 if self.two_passes else int(self.inputs > 1)

    def kernels(
        self, columns: int, dtype: torch.dtype, output_dtype: torch.dtype | None = None
    ) -> list[tuple[Any, ...]]:
        """The arguments of ``build_variant`` for rows of one size, aligned to whole loads, of any number."""
        output_dtype = output_dtype or dtype
        elements = row_elements(columns, dtype.itemsize, output_dtype.itemsize)
        layouts = row_layouts(columns, elements, dtype.itemsize, self.work)
        counts = (CppType(self.functor), self.inputs, self.shared, self.outputs)
        if not layouts:
            return [(self.file, "device::row_reduce_generic", *counts, elements, dtype, output_dtype)]
        return [
            (self.file, "device::row_reduce", *counts, columns, elements, *layout, dtype, output_dtype)
            for layout in layouts
        ]

    def generic(self, dtype: torch.dtype, output_dtype: torch.dtype | None = None) -> tuple[Any, ...]:
        """The same of the kernel for rows of any size, in whole loads."""
        return self.kernels(MAX_VECTORS * WORD, dtype, output_dtype)[0]

    def loop(self, dtype: torch.dtype, output_dtype: torch.dtype | None = None) -> tuple[str, str]:
        """The arguments of ``build_deferred`` for the CPU."""
        counts = (CppType(self.functor), self.inputs, self.shared, self.outputs)
        return self.file, f"host::cpu::row_reduce<{make_cpp_args(*counts, dtype, output_dtype or dtype)}>"


def row_elements(columns: int, *itemsizes: int) -> int:
    """The elements of a vector of rows without gaps: the most that one word holds and that divide a row."""
    elements = _whole(*itemsizes)
    return min(elements, columns & -columns) if columns else elements


def row_layouts(columns: int, elements: int, itemsize: int, work: int = 0) -> list[Layout]:
    """The layouts of rows of one size, of any number, on any device; none if they are read several times instead.

    Args:
        columns, elements: of a row, of a vector.
        itemsize: bytes of an element.
        work: the number of a ``sgl::RowWork``: one input, more inputs, two passes.
    """
    vectors = columns // elements
    if elements == 1 or elements * itemsize < WORD // 2 or not 0 < vectors <= MAX_VECTORS:
        return []
    line, *of_columns = next(line for line in _table()[work] if line[0] >= vectors)
    found = set()
    for of_line in of_columns:
        threads = of_line if line == vectors else _in_warps(-(-vectors // -(-line // of_line)))
        found.add((threads, threads) if threads > WARP else _of_warps(vectors))
    return sorted(found)


def _whole(*itemsizes: int) -> int:
    """The elements of a whole load."""
    return WORD // max(itemsizes)


def _of_warps(vectors: int) -> Layout:
    """Rows of a warp or a part of one."""
    return min(WARP, 1 << (vectors - 1).bit_length()), 8 * WARP if vectors <= WARP else 4 * WARP


def _in_warps(threads: int) -> int:
    return -(-threads // WARP) * WARP


@functools.cache
def _table() -> list[list[list[int]]]:
    """``sgl::kRowLayouts``: for each work its lines, each the vectors and the threads."""
    text = (paths.core_include() / "sgl_kernel" / "impl" / "row_layout.h").read_text(encoding="utf-8")
    works = text.partition("kRowLayouts[")[2].partition("};")[0].split("{  //")[1:]
    return [
        [[int(number) for number in re.findall(r"\d+", line)] for line in re.findall(r"\{ *\d.*", work)]
        for work in works
    ]
