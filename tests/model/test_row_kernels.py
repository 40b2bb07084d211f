"""The kernels and loops of row operations, by their names."""

from __future__ import annotations

import torch

from sgljit_core.model.arguments import CppType, make_cpp_args
from sgljit_core.model.row_kernels import RowMapping

GATED = RowMapping("gated.h", "acme::Gated", inputs=2)
FUNCTOR = CppType("acme::Gated")


def test_a_map_of_aligned_rows_moves_whole_words():
    float16, float8 = torch.float16, torch.float8_e4m3fn
    assert GATED.kernel(float16) == ("gated.h", "device::row_map", FUNCTOR, 2, 1, 8, False, float16, float16)
    assert GATED.kernel(float16, float8)[5:] == (8, False, float16, float8)  # the input's word is full first
    assert GATED.kernel(float8, torch.float32)[5] == 4
    assert GATED.kernel(float16, elements=2, has_tail=True)[5:7] == (2, True)


def test_a_map_has_a_loop_for_each_pair_of_types():
    arguments = make_cpp_args(FUNCTOR, 2, 1, torch.bfloat16, torch.float32)
    assert GATED.loop(torch.bfloat16, torch.float32) == ("gated.h", f"host::cpu::row_map<{arguments}>")
    same = make_cpp_args(FUNCTOR, 2, 1, torch.bfloat16, torch.bfloat16)
    assert GATED.loop(torch.bfloat16) == ("gated.h", f"host::cpu::row_map<{same}>")
