"""The registers of row reductions: what the headers reckon with, and what the compiler takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sgljit_norm.bench import tune

from .toolbox import compile_cuda

# A norm with weight and bias, in two passes; one with a weight; and one of a sum.
FUNCTORS = """
#include <sgl_kernel/row_reduce.cuh>

namespace rows {
struct OneInput {
  SGL_HD float term(float x) const { return x * x; }
  SGL_HD float finish(float sum, float size) const { return sgl::rsqrt(sum / size); }
  SGL_HD float operator()(float factor, float x, float weight) const { return x * factor * weight; }
};
struct MoreInputs : OneInput {
  SGL_HD float combine(float x, float residual) const { return x + residual; }
};
struct TwoPasses {
  static constexpr bool kFirstEstimates = true;
  struct Moments { float mean, factor; };
  SGL_HD float term(float x) const { return x; }
  SGL_HD float finish(float sum, float size) const { return sum / size; }
  SGL_HD sgl::Values<2> second_term(float mean, float x) const { return {{(x - mean) * (x - mean), x - mean}}; }
  SGL_HD Moments second_finish(float mean, const sgl::Values<2>& sums, float size) const {
    return {mean + sums.values[1] / size, sgl::rsqrt(sums.values[0] / size)};
  }
  SGL_HD float operator()(const Moments& m, float x, float weight, float bias) const {
    return (x - m.mean) * m.factor * weight + bias;
  }
};
}  // namespace rows
"""
WORKS = {"OneInput": (1, 1, 1), "MoreInputs": (2, 1, 2), "TwoPasses": (1, 2, 1)}
SIZES = (6656, 8192, 9728, 12288, 13824, 16384)  # whole warps' worth of vectors, and not


def layouts(vectors: int, work: int) -> set[tuple[int, int]]:
    """The threads of a row and of a block, of any number of rows."""
    rows = (1, *(132 * eighths // 8 + 1 for eighths in (1, 8, 16, 24, 32, 48, 64)))
    chips = ((132, 2048, 9, 0), (132, 2048, 0, 0))  # by the table, and by the rule
    return {tune.chosen_layout(vectors, work, count, chip)[:2] for count in rows for chip in chips}


def kernels() -> str:
    """Each kernel that rows of these sizes can take."""
    lines = []
    for work, (functor, (inputs, shared, outputs)) in enumerate(WORKS.items()):
        params = f"const __grid_constant__ sgl::RowReduceParams<{inputs + shared + outputs}>"
        for size in SIZES:
            for threads, block in sorted(layouts(size // 8, work)):
                arguments = f"{inputs}, {shared}, {outputs}, {size}, 8, {threads}, {block}, bf16_t, bf16_t"
                lines.append(
                    f"template __global__ void device::row_reduce<rows::{functor}, {arguments}>({params}, "
                    f"const __grid_constant__ rows::{functor});"
                )
    return "\n".join(lines)


@pytest.mark.parametrize("arch", ["90a", pytest.param("89", marks=pytest.mark.slow)])
def test_rows_in_registers_spill_few_of_them(arch: str, tmp_path: Path):
    """And a multiprocessor holds the blocks that a kernel asks for: else the compiler warns, which is an error here."""
    built = compile_cuda(FUNCTORS + kernels(), tmp_path, "-Xptxas", "-v", arch=arch)
    assert built.returncode == 0, built.stderr
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill stores", built.stderr)]
    assert len(spilled) > 60
    assert max(spilled) <= 64, "sixteen registers"


# As the CUDA Occupancy Calculator has it: registers of a warp come in units of 256, from one of four schedulers.
CAPS = {
    (128, 3): 168,
    (128, 4): 128,
    (224, 3): 80,
    (256, 3): 80,
    (384, 3): 56,
    (512, 2): 64,
    (768, 2): 40,
    (1024, 1): 64,
}


@pytest.mark.parametrize(("arch", "most"), [("90a", 2048), ("89", 1536), ("75", 1024)])
def test_the_registers_of_a_thread_follow_from_the_blocks_of_a_multiprocessor(arch: str, most: int, tmp_path: Path):
    asserts = "".join(
        f"static_assert(device::registers_of({threads}, {blocks}) == {cap if threads * blocks <= most else 0});\n"
        for (threads, blocks), cap in CAPS.items()
    )
    built = compile_cuda("#include <sgl_kernel/row_reduce.cuh>\n" + asserts, tmp_path, arch=arch)
    assert built.returncode == 0, built.stderr
