"""A kernel that writes one element: a launch costs, and the kernel does not."""

import triton
import triton.language as tl


@triton.jit
def beside(rows, output, weights, a, b, c, d, e, variant, scale, BLOCK: tl.constexpr):
    """It has the arguments of ``csrc/beside.cpp``."""
    if tl.program_id(0) == 0 and a > variant:
        tl.store(output, scale.to(output.dtype.element_ty))
