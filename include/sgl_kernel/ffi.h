#pragma once

#include <sgl_kernel/tensor_view.h>
#include <sgl_kernel/utils.h>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

/// \file ffi.h
/// \brief Tensors made in C++: `host::Tensor` owns one, `ffi::allocate` and `ffi::from_blob` make them.
///
/// Only tvm-ffi's C ABI is used, so a compiled module outlives upgrades of tvm-ffi.

namespace host {

namespace details {

/// A tvm-ffi call failed and stored its error for the caller of this module: only unwind.
struct RaisedError : std::exception {
  const char* what() const noexcept override {
    return "a call to tvm-ffi failed";
  }
};

/// A DLPack tensor over foreign memory, with its shape and strides behind it.
template <typename Deleter>
struct Blob {
  static constexpr std::size_t kMaxRank = 16;
  DLManagedTensorVersioned managed;
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
  Deleter deleter;

  static void destroy(DLManagedTensorVersioned* self) {
    auto* blob = static_cast<Blob*>(self->manager_ctx);
    blob->deleter(self->dl_tensor.data);
    delete blob;
  }
};

}  // namespace details

/// \brief A tensor that keeps its memory alive; moves, does not copy. Return it from an exported function to hand it
/// to Python.
struct Tensor {
 public:
  Tensor() noexcept = default;
  /// \brief Take over a reference that the caller holds.
  explicit Tensor(TVMFFIObjectHandle handle) noexcept : m_handle(handle) {}
  Tensor(Tensor&& other) noexcept : m_handle(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    const TVMFFIObjectHandle mine = m_handle;
    m_handle = other.m_handle;
    other.m_handle = mine;
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (m_handle != nullptr) TVMFFIObjectDecRef(m_handle);
  }

  [[nodiscard]] bool defined() const noexcept {
    return m_handle != nullptr;
  }
  /// \brief A view, valid for as long as this tensor lives.
  [[nodiscard]] TensorView view() const& {
    RuntimeCheck(m_handle != nullptr, "the tensor is empty");
    return reinterpret_cast<const DLTensor*>(static_cast<const char*>(m_handle) + sizeof(TVMFFIObject));
  }
  operator TensorView() const& {
    return view();
  }
  [[nodiscard]] void* data_ptr() const {
    return view().data_ptr();
  }
  /// \brief Give up the reference; the caller now holds it.
  [[nodiscard]] TVMFFIObjectHandle release() noexcept {
    const TVMFFIObjectHandle handle = m_handle;
    m_handle = nullptr;
    return handle;
  }

 private:
  TVMFFIObjectHandle m_handle = nullptr;
};

namespace ffi {

/// \brief A new contiguous tensor from the caller's allocator (PyTorch's, when PyTorch tensors are in the call), with
/// uninitialised elements. On CUDA the current stream orders the memory, as for `torch.empty`.
[[nodiscard]] inline Tensor allocate(ShapeView shape, DLDataType dtype, DLDevice device) {
  DLTensor prototype = {};
  prototype.shape = const_cast<std::int64_t*>(shape.data());
  prototype.ndim = static_cast<std::int32_t>(shape.size());
  prototype.dtype = dtype;
  prototype.device = device;
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIEnvTensorAlloc(&prototype, &handle) != 0) throw details::RaisedError{};
  return Tensor{handle};
}

/// \brief As above, with the shape in braces: `allocate({n, 128}, x.dtype(), x.device())`.
[[nodiscard]] inline Tensor allocate(std::initializer_list<std::int64_t> shape, DLDataType dtype, DLDevice device) {
  return allocate(ShapeView{shape.begin(), shape.size()}, dtype, device);
}

/// \brief A new tensor like `other`: same shape, dtype and device.
[[nodiscard]] inline Tensor allocate_like(const TensorView& other) {
  return allocate(other.shape(), other.dtype(), other.device());
}

/// \brief A contiguous tensor over existing memory. `deleter(data)` runs once, on the thread that drops the last
/// reference to the tensor; if `from_blob` throws, it does not run.
template <typename Deleter>
[[nodiscard]] Tensor from_blob(void* data, ShapeView shape, DLDataType dtype, DLDevice device, Deleter deleter) {
  using Blob = details::Blob<Deleter>;
  static_assert(
      requires { deleter(data); }, "ffi::from_blob: the deleter must be callable with the data pointer (void*)");
  RuntimeCheck(shape.size() <= Blob::kMaxRank, "ffi::from_blob takes up to 16 dimensions, got ", shape.size());
  auto* blob = new Blob{{}, {}, {}, static_cast<Deleter&&>(deleter)};
  const auto rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::int32_t i = rank - 1; i >= 0; --i) {
    blob->shape[i] = shape[static_cast<std::size_t>(i)];
    blob->strides[i] = stride;
    stride *= blob->shape[i];
  }
  blob->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  blob->managed.manager_ctx = blob;
  blob->managed.deleter = &Blob::destroy;
  blob->managed.dl_tensor = {data, device, rank, dtype, blob->shape, blob->strides, 0};
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFITensorFromDLPackVersioned(&blob->managed, 0, 0, &handle) != 0) {
    delete blob;
    throw details::RaisedError{};
  }
  return Tensor{handle};
}

/// \brief As above, over memory that outlives the tensor and is freed by someone else.
[[nodiscard]] inline Tensor from_blob(void* data, ShapeView shape, DLDataType dtype, DLDevice device) {
  return from_blob(data, shape, dtype, device, [](void*) {});
}

}  // namespace ffi

}  // namespace host
