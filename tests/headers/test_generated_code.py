"""What the compiler makes of the headers: a vector is moved by one instruction, a hint reaches the assembler."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from headers import toolbox

VECTORS = """
#include <sgl_kernel/fp8.cuh>
#include <sgl_kernel/vec.cuh>
template <typename T, size_t N>
__global__ void copy(T* out, const T* in) {
  device::AlignedVector<T, N> v;
  v.load(in, threadIdx.x);
  v.store(out, threadIdx.x);
}
template __global__ void copy<{type}, {count}>({type}*, const {type}*);
"""


def ptx(source: str, directory: Path, arch: str) -> str:
    (directory / "unit.cu").write_text(source)
    command = [*toolbox.nvcc_command(arch), "-O3", "unit.cu", "-ptx", "-o", "unit.ptx"]
    # -ptx takes one virtual target
    command = [flag.replace(f"code=sm_{arch}", f"code=compute_{arch}") for flag in command]
    result = subprocess.run(command, capture_output=True, text=True, cwd=directory)
    assert result.returncode == 0, result.stderr
    return (directory / "unit.ptx").read_text()


@pytest.mark.parametrize(
    ("arch", "element", "count", "instruction"),
    [
        ("90a", "fp16_t", 8, r"\.global\.v(4\.[bu]32|2\.[bu]64)"),
        pytest.param("90a", "fp8_e4m3_t", 16, r"\.global\.v(4\.[bu]32|2\.[bu]64)", marks=pytest.mark.slow),
        pytest.param("90a", "bf16x2_t", 4, r"\.global\.v(4\.[bu]32|2\.[bu]64)", marks=pytest.mark.slow),
        pytest.param("90a", "float", 2, r"\.global\.(v2\.[bu]32|[bu]64)", marks=pytest.mark.slow),
        pytest.param("90a", "uint8_t", 4, r"\.global\.[bu]32", marks=pytest.mark.slow),
        pytest.param("100a", "bf16_t", 16, r"\.global\.v(4\.[bu]64|8\.[bu]32)", marks=pytest.mark.slow),
    ],
)
def test_a_vector_is_one_load_and_one_store(
    arch: str, element: str, count: int, instruction: str, tmp_path: Path
) -> None:
    text = ptx(VECTORS.replace("{type}", element).replace("{count}", str(count)), tmp_path, arch)
    for access in ("ld", "st"):
        found = re.findall(rf"\b{access}\.global\S*", text)
        assert len(found) == 1, found
        assert re.fullmatch(access + instruction, found[0])


@pytest.mark.parametrize(
    ("arch", "cuda", "widest"), [("90a", 13, 16), ("100a", 12, 16), ("100a", 13, 32), ("120a", 13, 32)]
)
def test_the_widest_vector_is_one_that_the_compiler_moves_at_once(arch: str, cuda: int, widest: int) -> None:
    """With CUDA 12 a load of 32 bytes would be two, each with gaps of 16 bytes between the threads."""
    text = "#undef __CUDACC_VER_MAJOR__\n#define __CUDACC_VER_MAJOR__ {}\n#include <sgl_kernel/vec.cuh>\n"
    text += "static_assert(device::kMaxVecBytes == {});\n__global__ void kernel() {{}}\n"
    assert toolbox.compile_nvrtc(text.format(cuda, widest), arch) == ""
    assert "static assertion failed" in toolbox.compile_nvrtc(text.format(cuda, widest // 2), arch)


def test_constant_masks_cost_no_branch(tmp_path: Path) -> None:
    source = """
#include <sgl_kernel/warp.cuh>
__global__ void kernel(float* x) { x[threadIdx.x] = device::warp::reduce_sum(x[threadIdx.x]); }
"""
    text = ptx(source, tmp_path, "90a")
    assert text.count("shfl.sync.bfly") == 5
    assert "bra" not in text


def test_the_row_of_a_whole_block_is_the_same_number_in_each_thread(tmp_path: Path) -> None:
    """Divided from the thread's number, its address costs registers: two blocks then run where three could."""
    source = """
#include <sgl_kernel/row_program.h>
struct Centred {
  SGL_OPERANDS(x, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto values = row[x];
    const float mean = row.sum([](float v) { return v; }, values) / row.size();
    return sgl::store(out = sgl::map([=](float v) { return v - mean; }, values));
  }
};
constexpr sgl::RowShape kShape = {12288, 0, 8, 384};
template __global__ void device::row_program_without_fields<
    Centred, 2, 384, 0, true, 0x22, sgl::kIsFlat, kShape.number()>(
    const __grid_constant__ sgl::RowProgramParams<2, 1>);
"""
    text = ptx(source, tmp_path, "90a")
    divided = r"(div|rem|mul\.(hi|wide))\.u32\s+%\w+, %\w+, -?\d{6,};"  # a product with a rounded inverse
    assert not re.search(divided, text)


@pytest.mark.parametrize(("is_double", "loads"), [("false", 1 + 2 + 4), ("true", 1 + 2 * 2 + 4)])
def test_two_heads_of_a_thread_share_the_loads_of_their_angles(is_double: str, loads: int, tmp_path: Path) -> None:
    """A position, two vectors of each head, four of float32 angles: behind a branch these would be loaded twice."""
    source = """
#include <sgl_kernel/stages.h>
struct Turned {
  SGL_OPERANDS(x, cos_sin)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {
    const auto cos = row.of_pairs(sgl::neox, cos_sin, 0, 2), sin = row.of_pairs(sgl::neox, cos_sin, 1, 2);
    return sgl::store(x = row.pairs(sgl::neox, sgl::Rotation{}, row[x], cos, sin));
  }
};
constexpr sgl::RowShape kShape = {128, 128, 8, 8, false, false, 1, IS_DOUBLE};
template __global__ void device::row_program_without_fields<Turned, 2, 128, 0, true, 0x02, 0x20, kShape.number()>(
    const __grid_constant__ sgl::RowProgramParams<2, 1>);
"""
    text = ptx(source.replace("IS_DOUBLE", is_double), tmp_path, "90a")
    assert len(re.findall(r"\bld\.global\S*", text)) == loads


@pytest.mark.parametrize(
    ("header", "types", "instruction"),
    [("fp8", 0x32, "cvt.rn.satfinite.e4m3x2.f32"), ("type", 0x22, "cvt.rn.bf16x2.f32")],
)
def test_two_elements_are_converted_by_one_instruction(
    header: str, types: int, instruction: str, tmp_path: Path
) -> None:
    source = f"""
#include <sgl_kernel/{header}.cuh>
#include <sgl_kernel/row_program.h>
struct Twice {{
  SGL_OPERANDS(x, out)
  template <typename Row>
  SGL_HD auto operator()(const Row& row) const {{
    return sgl::store(out = sgl::map([](float v) {{ return v + v; }}, row[x]));
  }}
}};
constexpr sgl::RowShape kShape = {{0, 0, 8, 0, true}};
template __global__ void device::row_program_without_fields<
    Twice, 2, 128, 0, true, {types}, sgl::kIsFlat, kShape.number()>(
    const __grid_constant__ sgl::RowProgramParams<2, 1>);
"""
    text = ptx(source, tmp_path, "90a")
    assert text.count(instruction) == 8 / 2
    assert len(re.findall(r"cvt\.rn\S*(e4m3|bf16)", text)) == 8 / 2
