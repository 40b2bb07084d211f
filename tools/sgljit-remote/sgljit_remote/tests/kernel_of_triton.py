"""A kernel of Triton's, which is compiled for a GPU that need not be there."""

import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + place, tl.load(x_ptr + place, place < n) * 2, place < n)
