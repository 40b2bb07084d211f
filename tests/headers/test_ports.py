"""Kernels that are written to SGLang's headers: their names are there, and no other build sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headers import toolbox

from sgljit_core import errors, load_jit, override_cuda_arch
from sgljit_core.compilers import includes, recipe
from sgljit_core.model.build import BuildSpec, Target

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


@pytest.mark.parametrize("where", ["before", "after"])
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


def test_files_that_are_units_of_their_own_see_them_too(tmp_path: Path) -> None:
    (tmp_path / "light.cpp").write_text(
        "#include <sgl_kernel/tensor.h>\n#include <sgl_kernel/export.h>\n"
        "static int rank(tvm::ffi::TensorView x) { return x.ndim(); }\nSGL_EXPORT(rank, (rank))\n"
    )
    (tmp_path / "heavy.cpp").write_text(
        "#include <tvm/ffi/function.h>\n"
        "static int size(tvm::ffi::TensorView x) { return static_cast<int>(x.size(0)); }\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(size, size)\n"
    )
    for files in (["light.cpp"], ["heavy.cpp"], ["light.cpp", "heavy.cpp"]):
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


KERNEL = """
#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/cta.cuh>
#include <sgl_kernel/impl/norm.cuh>
#include <sgl_kernel/mbarrier.cuh>
#include <sgl_kernel/runtime.cuh>
#include <sgl_kernel/tile.cuh>
#include <sgl_kernel/utils.cuh>
#include <sgl_kernel/vec.cuh>

namespace sglang {

struct Params { const void* x; void* out; uint32_t rows; device::math::fast_mod_div_u32_t by; };

template <typename T, int64_t kDim, bool kUsePDL>
__global__ void rows_kernel(const __grid_constant__ Params params) {
  using namespace device;
  using vec_t = norm::StorageType<T, kDim>;
  __shared__ float smem[norm::kSmemBufferSize];
  const auto row = blockIdx.x;
  PDLWaitPrimary<kUsePDL>();
  const auto mem = tile::Memory<vec_t>::cta();
  const auto base = pointer::offset<T>(params.x, row * kDim);
  const auto x = mem.load(base);
  const auto y = norm::apply_norm_cta<kDim>(x, x, 1e-6f, smem);
  mem.store(pointer::offset<T>(params.out, row * kDim), y);
  const auto most = warp::reduce_max<8, 1>(warp::inclusive_sum(float(row % params.by)));
  const auto total = cta::reduce_sum<256>(most, smem);
  if (total < 0) warp::store_bytes<256>(params.out, warp::load_bytes<256>(params.x));
  PDLTriggerSecondary<kUsePDL>();
}

template <typename T, int64_t kDim, bool kUsePDL>
struct Rows {
  static constexpr auto kernel = rows_kernel<T, kDim, kUsePDL>;
  static void run(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
    using namespace host;
    auto N = SymbolicSize{"rows"};
    auto device = SymbolicDevice{};
    device.set_options<kDLGPU>();
    TensorMatcher({N, kDim}).with_dtype<T>().with_device(device).ensure_alignment(16).verify(x).verify(out);
    CHECK_HOST(N.unwrap() > 0) << "no rows";
    CHECK_CUDA(cudaGetLastError()) << "before";
    runtime::set_max_dynamic_smem_per_device<kernel>(device.unwrap(), 1024);
    const auto params = Params{x.data_ptr(), out.data_ptr(), static_cast<uint32_t>(N.unwrap()),
                               device::math::fast_mod_div_u32_t(7)};
    LaunchKernel(N.unwrap(), 256, device.unwrap()).config({.use_pdl = kUsePDL})(kernel, params);
  }
};

}  // namespace sglang
"""


def test_a_kernel_of_the_newest_release_compiles_for_hopper() -> None:
    toolbox.find(cuda=True)
    with override_cuda_arch(9, 0):
        module = load_jit("rows", cuda_sources=KERNEL, cuda_wrappers=[("rows", "Rows<bf16_t, 2048, true>::run")])
    assert module.rows is not None
