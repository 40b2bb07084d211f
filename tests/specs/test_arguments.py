"""Python values as C++ template arguments."""

from __future__ import annotations

import math
import struct
import subprocess

import pytest
import torch

from sgljit_core import make_cpp_args


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-7, "-7"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "(-9223372036854775807 - 1)"),
        (2**64 - 1, "18446744073709551615u"),
        (True, "true"),
        (False, "false"),
        (1.0, "1.0"),
        (1e-6, "1e-06"),
        (math.inf, "__builtin_bit_cast(double, 0x7ff0000000000000ull)"),
        (-math.inf, "-__builtin_bit_cast(double, 0x7ff0000000000000ull)"),
        (torch.float16, "fp16_t"),
        (torch.bfloat16, "bf16_t"),
        (torch.float32, "fp32_t"),
        (torch.int64, "int64_t"),
    ],
)
def test_a_value_renders_as_its_literal(value, text):
    assert str(make_cpp_args(value)) == text


def test_arguments_join_in_text_and_spread_as_markers():
    args = make_cpp_args(128, True, torch.bfloat16)
    assert f"Kernel<{args}>" == "Kernel<128, true, bf16_t>"
    assert [*args] == ["128", "true", "bf16_t"]


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e300, 3.0, -0.0, 123456789.123456789, 5e-324, math.inf, -math.inf])
def test_a_float_reads_back_as_the_same_double(value, tmp_path):
    source = tmp_path / "literal.cpp"
    bits = int.from_bytes(struct.pack("<d", value), "little")
    literal = f"static_cast<double>({make_cpp_args(value)})"
    source.write_text(f"static_assert(__builtin_bit_cast(unsigned long long, {literal}) == {bits}ull);")
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", source], check=True)


@pytest.mark.parametrize("value", ["128", None, [1], 1j, torch.ones(1)])
def test_any_other_type_is_a_type_error_that_names_it(value):
    with pytest.raises(
        TypeError, match=f"int, float, bool, torch.dtype, CppEnum or CppType, got {type(value).__name__}"
    ):
        make_cpp_args(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_an_int_beyond_64_bits_is_refused(value):
    with pytest.raises(ValueError, match="does not fit a 64-bit"):
        make_cpp_args(value)


def test_a_dtype_without_a_cpp_type_is_refused():
    with pytest.raises(ValueError, match=r"torch.complex64 has no C\+\+ type"):
        make_cpp_args(torch.complex64)
