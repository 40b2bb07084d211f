"""The kernel of ``moe_sum``. Only Triton reads this file: it imports Triton alone."""

import triton
import triton.language as tl


@triton.jit
def moe_sum(
    rows,
    output,
    weights,  # or None
    hidden,
    token_stride,
    expert_stride,
    output_stride,
    weight_token_stride,
    weight_expert_stride,
    scale,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program sums BLOCK columns of a token's rows, from the first expert to the last, in float32."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < hidden
    row = rows + token * token_stride + column
    sums = tl.zeros([BLOCK], tl.float32)
    if weights is not None:
        weight = weights + token * weight_token_stride
    for _ in tl.static_range(EXPERTS):
        value = tl.load(row, mask=is_there, other=0.0).to(tl.float32)
        if weights is not None:
            value *= tl.load(weight)
            weight += weight_expert_stride
        sums += value
        row += expert_stride
    tl.store(output + token * output_stride + column, (sums * scale).to(output.dtype.element_ty), mask=is_there)
