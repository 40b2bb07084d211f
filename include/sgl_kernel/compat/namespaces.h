#pragma once

/// \file compat/namespaces.h
/// \brief The namespace `sglang` of SGLang 0.5.23, with our `host` and `device` in it.
///
/// Newer kernels open `sglang` and then, as it suits them, `host` and `device` inside. So each namespace that they may
/// open has its counterpart here, which looks its names up in ours.

#include <sgl_kernel/compat/host.h>
#if SGL_COMPAT_DEVICE
#include <sgl_kernel/compat/runtime.cuh>
#endif

namespace sglang {

namespace host {

// One by one: LaunchKernel is another, and nvcc's front end finds both in a generic lambda.
using ::host::DebugInfo;
using ::host::dependent_false_v;
using ::host::div_ceil;
using ::host::dtype_bytes;
using ::host::irange;
using ::host::is_pow2;
using ::host::is_type;
using ::host::log2_ceil;
using ::host::log2_floor;
using ::host::Panic;
using ::host::panic;
using ::host::PanicError;
using ::host::round_down_pow2;
using ::host::round_up_pow2;
using ::host::RuntimeCheck;
using ::host::SymbolicDevice;
using ::host::SymbolicDType;
using ::host::SymbolicSize;
using ::host::TensorMatcher;
using ::host::operator==;
#if SGL_COMPAT_DEVICE
using ::host::RuntimeDeviceCheck;
#endif

namespace details {
using namespace ::host::details;
}
namespace ffi {
using namespace ::host::ffi;
}
namespace pointer {
using namespace ::host::pointer;
}

#if SGL_COMPAT_DEVICE

namespace norm {
using namespace ::host::norm;
}
namespace runtime {
using namespace ::host::runtime;
}

/// \brief The options of a launch, by name.
struct LaunchOptions {
  bool use_pdl = false;
  std::optional<dim3> cluster_dim = {};
};

/// \brief `host::LaunchKernel`, and its options as one argument.
struct LaunchKernel : ::host::LaunchKernel {
  // Not inherited: nvcc's front end dies of these constructors' default arguments.
  explicit LaunchKernel(
      ::host::Dim3 grid, ::host::Dim3 block, DLDevice device, std::size_t dynamic_smem = 0, DebugInfo location = {})
      : ::host::LaunchKernel(grid, block, device, dynamic_smem, location) {}
  explicit LaunchKernel(
      ::host::Dim3 grid, ::host::Dim3 block, ::host::native_stream_t stream, std::size_t dynamic_smem = 0,
      DebugInfo location = {})
      : ::host::LaunchKernel(grid, block, stream, dynamic_smem, location) {}

  auto config(const LaunchOptions& options) -> LaunchKernel& {
    if (options.use_pdl) enable_pdl();
    if (options.cluster_dim) enable_cluster(*options.cluster_dim);
    return *this;
  }
  template <typename Kernel, typename... Args>
  void launch(const Kernel& kernel, Args&&... args) const {
    (*this)(kernel, static_cast<Args&&>(args)...);
  }
};

#endif

}  // namespace host

#if SGL_COMPAT_DEVICE

using ::bf16_t;
using ::bf16x2_t;
using ::fp16_t;
using ::fp16x2_t;
using ::fp32_t;
using ::fp32x2_t;
using ::fp32x4_t;
using ::fp8_e4m3_t;
using ::fp8_e5m2_t;
using ::fp8x2_e4m3_t;
using ::fp8x2_e5m2_t;
using ::fp8x4_e4m3_t;
using ::fp8x4_e5m2_t;
using ::kDLGPU;
using ::kDLGPUHost;
using ::kFP8E4M3Max;
using ::packed_t;

namespace device {

using namespace ::device;
namespace atomic {
using namespace ::device::atomic;
}
namespace cta {
using namespace ::device::cta;
}
namespace details {
using namespace ::device::details;
}
namespace math {
using namespace ::device::math;
}
namespace norm {
using namespace ::device::norm;
}
/// Not a counterpart of ours, which refuses typed pointers.
namespace pointer {

/// \brief `ptr` plus the sum of `offsets`, in elements of T: bytes, unless T is named.
template <typename T = char, typename... U>
[[nodiscard]] SGL_DEVICE void* offset(void* ptr, U... offsets) {
  return static_cast<T*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}
template <typename T = char, typename... U>
[[nodiscard]] SGL_DEVICE const void* offset(const void* ptr, U... offsets) {
  return static_cast<const T*>(ptr) + (int64_t{0} + ... + static_cast<int64_t>(offsets));
}

}  // namespace pointer
namespace tile {
using namespace ::device::tile;
}
namespace warp {
using namespace ::device::warp;
}

/// Not a counterpart of ours: kernels define functions of the same names in it.
namespace ptx {

#if !defined(USE_ROCM)
[[nodiscard]] SGL_DEVICE uint32_t to_shared(const void* smem) {
  return ::device::ptx::shared_address(smem);
}
#endif

#if SGL_ARCH_HOPPER_OR_GREATER

SGL_DEVICE void mbar_init(uint64_t* barrier, uint32_t count) {
  ::device::ptx::mbarrier_init(barrier, count);
}
SGL_DEVICE void mbar_arrive(uint64_t* barrier) {
  ::device::ptx::mbarrier_arrive(barrier);
}
/// Orders more than its name says.
SGL_DEVICE void mbar_arrive_relaxed(uint64_t* barrier) {
  ::device::ptx::mbarrier_arrive(barrier);
}
SGL_DEVICE void mbar_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  ::device::ptx::mbarrier_arrive_expect(barrier, bytes);
}
SGL_DEVICE void mbar_wait_parity(uint64_t* barrier, uint32_t parity) {
  ::device::ptx::mbarrier_wait(barrier, parity);
}

#endif

}  // namespace ptx

}  // namespace device

/// \brief Facts about an element type or a pack of them, and functions of it.
template <typename T>
struct DTypeTrait : device::details::Element<T> {
  using self_t = T;
  static constexpr device::details::bits_t<sizeof(T)> kZeroBits = 0;
  /// The largest finite value, as a float.
  static constexpr float kFloatMax = ::device::details::is_same<T, fp16_t>       ? 65504.0f
                                     : ::device::details::is_same<T, bf16_t>     ? 3.38953139e38f
                                     : ::device::details::is_same<T, fp8_e4m3_t> ? 448.0f
                                     : ::device::details::is_same<T, fp8_e5m2_t> ? 57344.0f
                                                                                 : std::numeric_limits<float>::max();
  template <typename From>
  SGL_DEVICE static T from(const From& value) {
    return ::device::cast<T>(value);
  }
  SGL_DEVICE static T add(const T& a, const T& b) {
    return ::device::details::combine<::device::ReductionOp::SUM>(a, b);
  }
  SGL_DEVICE static T max(const T& a, const T& b) {
    return ::device::details::combine<::device::ReductionOp::MAX>(a, b);
  }
  SGL_DEVICE static T min(const T& a, const T& b) {
    return ::device::details::combine<::device::ReductionOp::MIN>(a, b);
  }
  SGL_DEVICE static T abs(const T& a) {
    return ::device::math::abs(a);
  }
};

#endif

}  // namespace sglang
