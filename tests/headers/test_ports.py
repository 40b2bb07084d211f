"""Kernels that are written to SGLang's headers: their names are there, and no other build sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from headers import toolbox

from sgljit_core import errors, is_arch_support_pdl, load_jit, make_cpp_args, override_cuda_arch
from sgljit_core.compilers import includes, recipe
from sgljit_core.specs.build import BuildSpec, Target

SUM = """
#include <sgl_kernel/tensor.h>

double sum(const tvm::ffi::TensorView x, tvm::ffi::Optional<tvm::ffi::TensorView> weight) {
  auto N = host::SymbolicSize{"length"};
  host::TensorMatcher({N}).with_dtype<float>().verify(x);
  if (weight.has_value()) host::TensorMatcher({N}).with_dtype<float>().verify(weight.value());
  double total = 0;
  for (auto i : host::irange(N.unwrap())) {
    const auto w = weight.has_value() ? static_cast<const float*>(weight.value().data_ptr())[i] : 1.0f;
    total += static_cast<const float*>(x.data_ptr())[i] * w;
  }
  return total;
}
"""


def load(text: str, *names: str, **options: Any) -> Any:
    return load_jit("port", cpp_sources=text, cpp_wrappers=[(name, name) for name in names], **options)


def test_tvm_ffis_names_are_there_after_tensor_h_alone_and_cost_none_of_its_headers() -> None:
    module = load(SUM, "sum")
    assert module.sum(torch.arange(4.0), None) == 6
    assert module.sum(torch.arange(4.0), torch.full((4,), 2.0)) == 12
    with pytest.raises(errors.TensorMatchError, match="expected 4 but got 3"):
        module.sum(torch.arange(4.0), torch.ones(3))


@pytest.mark.parametrize("where", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_they_are_tvm_ffis_own_where_a_file_of_the_build_includes_its_headers(where: str, tmp_path: Path) -> None:
    (tmp_path / "object.h").write_text(
        "#include <tvm/ffi/container/tensor.h>\ninline int rank(tvm::ffi::Tensor x) { return x.ndim(); }\n"
    )
    include = '#include "object.h"\n'
    text = include + SUM if where == "before" else SUM + include
    module = load(text, "sum", "rank", csrc=tmp_path)
    assert module.sum(torch.arange(4.0), None) == 6
    assert module.rank(torch.ones(2, 2)) == 2


def test_names_of_sizes_may_be_string_views_and_strings() -> None:
    text = """
        #include <sgl_kernel/tensor.h>
        #include <string>
        #include <string_view>
        void match(tvm::ffi::TensorView x, bool owned) {
          const std::string text = "a string, then more";
          auto S = host::SymbolicSize{text};
          auto V = host::SymbolicSize{std::string_view(text).substr(2, 6)};
          host::TensorMatcher({owned ? S : V, owned ? S : V}).verify(x);
        }
    """
    module = load(text, "match")
    module.match(torch.ones(2, 2), True)
    with pytest.raises(errors.TensorMatchError, match=r"shape#1\('a string, then more'\): expected 2 but got 3"):
        module.match(torch.ones(2, 3), True)
    with pytest.raises(errors.TensorMatchError, match=r"shape#1\('string'\): expected 2 but got 3"):
        module.match(torch.ones(2, 3), False)


def test_checks_are_streams_and_print_what_has_only_a_stream_operator() -> None:
    text = """
        #include <sgl_kernel/utils.h>
        #include <ostream>
        namespace sglang {
        struct Point { int x, y; };
        std::ostream& operator<<(std::ostream& stream, const Point& p) {
          return stream << p.x << '/' << p.y << " of a text that is longer than any small buffer";
        }
        void check(int x) { host::RuntimeCheck(x > 0, "point ", Point{x, 3}, " at ", "the end"); }
        void stream(int x) { CHECK_HOST(x > 0 && x < 9) << "got " << Point{x, 4} << " and " << 2; }
        void always() { SGL_PANIC << "never call it"; }
        }  // namespace sglang
    """
    module = load(text, "check", "stream", "always")
    module.check(1)
    module.stream(1)
    with pytest.raises(RuntimeError, match=r"cpp_sources\[0\]:\d+: point 0/3 of a text .* buffer at the end$"):
        module.check(0)
    with pytest.raises(RuntimeError, match=r"cpp_sources\[0\]:\d+: got 9/4 of a text .* buffer and 2$"):
        module.stream(9)
    with pytest.raises(RuntimeError, match=r"never call it$"):
        module.always()


def test_an_integer_range_is_a_range_of_the_standard_library() -> None:
    text = """
        #include <sgl_kernel/utils.h>
        #include <ranges>
        int squares(int n) {
          int total = 0;
          for (int x : host::irange(n) | std::views::transform([](int x) { return x * x; })) total += x;
          for (int x : std::views::reverse(host::irange(1, n)) | std::views::take(1)) total += 100 * x;
          return total + static_cast<int>(std::ranges::distance(host::irange(n)));
        }
        int unused(tvm::ffi::TensorView x) { return x.ndim(); }
    """
    assert load(text, "squares").squares(4) == 14 + 300 + 4


def test_tensors_are_made_by_their_names() -> None:
    text = """
        #include <sgl_kernel/ffi.h>
        namespace sglang {
        tvm::ffi::Tensor like(tvm::ffi::TensorView x) {
          auto out = host::ffi::empty_like(x);
          static_cast<float*>(out.data_ptr())[0] = 3;
          return out;
        }
        tvm::ffi::Tensor workspace(tvm::ffi::TensorView like, int64_t bytes) {
          return host::ffi::alloc_workspace_tensor(bytes, like.device());
        }
        }
    """
    module = load(text, "like", "workspace")
    out = torch.from_dlpack(module.like(torch.ones(1, 2)))
    assert (out.shape, out.dtype, out[0, 0].item()) == ((1, 2), torch.float32, 3)
    made = torch.from_dlpack(module.workspace(torch.ones(1), 5))
    assert (made.shape, made.dtype) == ((5,), torch.uint8)
    assert module.workspace(torch.ones(1), 0) is None


def test_same_shape() -> None:
    text = """
        #include <sgl_kernel/test_utils.h>
        void check(tvm::ffi::TensorView a, tvm::ffi::TensorView b) { host::assert_same_shape(a, b); }
    """
    module = load(text, "check")
    x = torch.zeros(2, 3)
    module.check(x, x.T.contiguous().T)
    for other in (torch.zeros(2, 4), torch.zeros(2), x.double()):
        with pytest.raises(
            errors.TensorMatchError, match=r"expected tensors of one shape.*Tensor<2, 3>.* and Tensor<2"
        ):
            module.check(x, other)


def test_alignment_is_matched() -> None:
    text = """
        #include <sgl_kernel/tensor.h>
        void match(tvm::ffi::TensorView x) {
          host::TensorMatcher({-1, -1}).with_strides({-1, 1}).ensure_alignment(16).verify(x);
        }
    """
    module = load(text, "match")
    x = torch.zeros(4, 8)
    module.match(x)
    module.match(x[:, 4:])
    module.match(torch.zeros(1, 5))  # one row: its stride does not count
    with pytest.raises(errors.TensorMatchError, match="expected an address that 16 divides"):
        module.match(x[:, 1:5])
    with pytest.raises(errors.TensorMatchError, match="stride#0: expected a multiple of 16 bytes but got 20"):
        module.match(torch.zeros(2, 5))


def test_powers_of_two() -> None:
    text = """
        #include <sgl_kernel/bits.h>
        namespace sglang {
        static_assert(host::is_pow2(8u) && !host::is_pow2(0u) && !host::is_pow2(6u));
        static_assert(host::log2_floor(9u) == 3 && host::log2_floor(8u) == 3 && host::log2_floor(0u) == -1);
        static_assert(host::log2_ceil(9u) == 4 && host::log2_ceil(8u) == 3 && host::log2_ceil(0u) == -1);
        static_assert(host::round_up_pow2(9u) == 16 && host::round_down_pow2(9u) == 8);
        int one() { return 1; }
        }
    """
    assert load(text, "one").one() == 1


@pytest.mark.slow
@pytest.mark.parametrize("files", [["light.cpp"], ["heavy.cpp"], ["light.cpp", "heavy.cpp"]], ids=" and ".join)
def test_files_that_are_units_of_their_own_see_them_too(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "light.cpp").write_text(
        "#include <sgl_kernel/tensor.h>\n#include <sgl_kernel/export.h>\n"
        "static int rank(tvm::ffi::TensorView x) { return x.ndim(); }\nSGL_EXPORT(rank, (rank))\n"
    )
    (tmp_path / "heavy.cpp").write_text(
        "#include <tvm/ffi/function.h>\n"
        "static int size(tvm::ffi::TensorView x) { return static_cast<int>(x.size(0)); }\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(size, size)\n"
    )
    module = load_jit("units", cpp_files=files, csrc=tmp_path, header_only=False)
    if "light.cpp" in files:
        assert module.rank(torch.ones(3, 2)) == 2
    if "heavy.cpp" in files:
        assert module.size(torch.ones(3, 2)) == 3


def test_no_other_build_sees_them(tmp_path: Path) -> None:
    def text_of(source: str) -> str:
        (tmp_path / "a.cpp").write_text(source)
        spec = BuildSpec(("m",), tmp_path, Target("cpu-x86_64"), cpp_files=("a.cpp",), cpp_wrappers=(("f", "f"),))
        roots = [includes.Root("csrc", tmp_path), includes.Root("core:", toolbox.INCLUDE, own=False)]
        scan = includes.scan(["a.cpp"], roots, "#include <sgl_kernel/export.h>\n", recipe.PORT_TEXT)
        assert scan.is_port == any("sgl_kernel/compat/" in name for name in scan.files)
        return recipe.generated_sources(spec, scan)["generated.cpp"]

    light = "#include <sgl_kernel/tensor.h>\nint f(host::TensorView x) { return x.ndim(); }\n"
    assert "compat" not in text_of(light)
    assert "compat" in text_of(light.replace("host::", "tvm::ffi::"))
    assert "SGL_TVM_FFI_CPP" not in text_of(light.replace("host::", "tvm::ffi::"))
    assert "SGL_TVM_FFI_CPP" in text_of("#include <tvm/ffi/string.h>\n" + light.replace("host::", "tvm :: ffi :: "))
    assert "compat" in text_of("namespace sglang { int f(); }\n")
    assert "compat" not in text_of("#include <tvm/ffi/function.h>\n" + light)


# Kernels

PORTS = Path(__file__).parent / "ports"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "port.md"
COPIES = [(4, 16), (16, 16), (100, 4), (576, 16), (576, -16), (1000, -8), (2048, -16), (4096, 16)]
SUMS = (32, 64, 256, 1024)
NAMES = [
    *(
        (name, name)
        for name in ("lanes", "divide", "barrier", "pinned", "times", "facts", "fail", "fail_in_the_driver")
    ),
    *((f"pairs_{name}", f"pairs<{name}x2_t>") for name in ("fp16", "bf16")),
    *((f"copy_{size}_{most}".replace("-", "m"), f"copy<{size}, {most}>") for size, most in COPIES),
    *((f"norm_{size}", f"norm_twice<{size}>") for size in (512, 4096, 8192)),
    *((f"block_sum_{threads}", f"block_sum<{threads}>") for threads in SUMS),
]


def load_names() -> Any:
    return load_jit("names", cuda_files=["names.cuh"], cuda_wrappers=NAMES, csrc=PORTS)


def load_gather(dtype: torch.dtype = torch.bfloat16, size: int = 512) -> Any:
    args = make_cpp_args(dtype, size, is_arch_support_pdl())
    wrappers = [("run", f"GatherRows<{args}>::run")]
    return load_jit("gather_rows", *args, cuda_files=["gather_rows.cuh"], cuda_wrappers=wrappers, csrc=PORTS)


@pytest.mark.slow
def test_the_names_compile_for_hopper() -> None:
    toolbox.find(cuda=True)
    with override_cuda_arch(9, 0):
        load_names()


@pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")
def test_the_page_shows_what_is_compiled_and_its_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert f"// example: ported\n{blocks['cpp']}// end\n" in (PORTS / "gather_rows.cuh").read_text()
    toolbox.find(cuda=True)
    monkeypatch.chdir(PAGE.parents[1])
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    with override_cuda_arch(9, 0):
        module = names["gather_rows_module"](torch.bfloat16, 512)
    assert module.run is not None


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 5, 3000])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [8, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_ported_kernel(dtype: torch.dtype, size: int, scaled: bool, rows: int) -> None:
    table = torch.randn(77, size, device="cuda", dtype=dtype)
    index = torch.randint(77, (rows,), device="cuda")
    scale = torch.rand(rows, device="cuda") if scaled else None
    out = torch.full((rows, size), torch.nan, device="cuda", dtype=dtype)
    load_gather(dtype, size).run(table, index, scale, out)
    wanted = table[index].float() * (1 if scale is None else scale[:, None])
    assert torch.equal(out, wanted.to(dtype))


@pytest.mark.gpu
def test_lanes() -> None:
    x = torch.randperm(32, device="cuda").float()
    out = torch.full((8, 32), torch.nan, device="cuda")
    load_names().lanes(x, out)
    groups = x.reshape(4, 8)
    wanted = [
        groups.sum(1, keepdim=True).expand(4, 8),
        groups.sum(0, keepdim=True).expand(4, 8),
        groups.amax(1, keepdim=True).expand(4, 8),
        x.cumsum(0),
        x.flip(0).cumsum(0).flip(0),
        groups.cummax(1).values,
        groups[:, 3:4].expand(4, 8),
        torch.ones(32, device="cuda"),
    ]
    assert torch.equal(out, torch.stack([row.reshape(32) for row in wanted]))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_pairs(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (32, 2), device="cuda").to(dtype)  # exact sums
    x[5] = 7
    out = torch.full((3, 2), torch.nan, device="cuda", dtype=dtype)
    getattr(load_names(), f"pairs_{name}")(x, out)
    assert torch.equal(out, torch.stack([x.sum(0), x.amax(0), x.amax(0) + x[0]]))


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "most"), COPIES)
def test_a_warp_copies_all_bytes_and_no_other(size: int, most: int) -> None:
    x = torch.randint(256, (size + 64,), device="cuda", dtype=torch.uint8)
    out = torch.zeros_like(x)
    getattr(load_names(), f"copy_{size}_{most}".replace("-", "m"))(x, out)
    assert torch.equal(out[:size], x[:size])
    assert not out[size:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("by", [1, 2, 3, 7, 64, 641, 65537, 2**31 - 1, 2**31])
def test_division_by_a_known_number(by: int) -> None:
    edges = [n + d for n in (0, by, 7 * by, 2**31 - 1 - (2**31 - 1) % by, 2**31 - 1) for d in (-1, 0, 1)]
    values = [n for n in edges if 0 <= n < 2**31] + torch.randint(2**31, (5000,)).tolist()
    n = torch.tensor(values, device="cuda", dtype=torch.int64)
    out = torch.zeros(len(values), 2, device="cuda", dtype=torch.int32)
    load_names().divide(n.to(torch.int32), out, by)
    assert torch.equal(out.long(), torch.stack([n // by, n % by], 1))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [512, 4096, 8192])
def test_norms_of_a_block_follow_each_other_without_a_barrier(size: int) -> None:
    x = torch.randn(300, size, device="cuda", dtype=torch.bfloat16)
    out = torch.full_like(x, torch.nan)
    getattr(load_names(), f"norm_{size}")(x, out)
    wanted = x.double() * x.double().square().mean(-1, keepdim=True).rsqrt()
    assert (out.double() - wanted).norm() / wanted.norm() < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("threads", SUMS)
def test_each_thread_of_a_block_gets_its_sum(threads: int) -> None:
    x = torch.randint(100, (threads,), device="cuda").float()
    out = torch.full_like(x, torch.nan)
    getattr(load_names(), f"block_sum_{threads}")(x, out)
    assert torch.equal(out, x.sum().expand(threads))


@pytest.mark.gpu
def test_host_functions_of_a_gpu() -> None:
    module = load_names()
    phases = torch.zeros(1, device="cuda", dtype=torch.int32)
    module.barrier(phases)
    assert phases.item() == 2
    major, minor = torch.cuda.get_device_capability()
    assert module.facts(0) == major * 10 + minor
    assert module.facts(1) > module.facts(2) == 48 * 1024
    assert module.pinned(phases) == phases.data_ptr()
    host = torch.zeros(4).pin_memory()
    assert module.pinned(host) == host.data_ptr()  # unified addresses
    assert module.times(10) == 2
    with pytest.raises(RuntimeError, match=r"names\.cuh:\d+: CUDA error: invalid argument \(1\)\. on purpose$"):
        module.fail()
    with pytest.raises(RuntimeError, match=r"CUDA error: an error of the CUDA driver \(1\)$"):
        module.fail_in_the_driver()
