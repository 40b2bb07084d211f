#pragma once

#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/utils.h>

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>

/// \file tensor_view.h
/// \brief `host::TensorView`: a tensor argument, at the cost of the DLPack header alone.
///
/// It has the accessor names of `tvm::ffi::TensorView`, whose header takes 4 s to compile; this one takes none. A view
/// owns nothing: it is valid as long as the caller's tensor, which for an argument is until the call returns.

namespace host {

/// \brief The sizes or strides of a tensor: a pointer and a length.
struct ShapeView {
 public:
  constexpr ShapeView() noexcept = default;
  constexpr ShapeView(const std::int64_t* data, std::size_t size) noexcept : m_data(data), m_size(size) {}

  constexpr const std::int64_t* data() const noexcept {
    return m_data;
  }
  constexpr std::size_t size() const noexcept {
    return m_size;
  }
  constexpr bool empty() const noexcept {
    return m_size == 0;
  }
  constexpr const std::int64_t* begin() const noexcept {
    return m_data;
  }
  constexpr const std::int64_t* end() const noexcept {
    return m_data + m_size;
  }
  constexpr std::int64_t operator[](std::size_t index) const noexcept {
    return m_data[index];
  }

 private:
  const std::int64_t* m_data = nullptr;
  std::size_t m_size = 0;
};

namespace details {

/// A view of another library, such as `tvm::ffi::TensorView`.
template <typename T>
concept ForeignTensorView = requires(const T& view) {
  view.data_ptr();
  { view.dtype() } -> traits::convertible_to<DLDataType>;
  { view.device() } -> traits::convertible_to<DLDevice>;
  { view.shape().data() } -> traits::convertible_to<const std::int64_t*>;
  { view.strides().data() } -> traits::convertible_to<const std::int64_t*>;
  { view.ndim() } -> traits::convertible_to<std::int32_t>;
};

}  // namespace details

/// \brief A non-owning view of a `DLTensor`.
struct TensorView {
 public:
  TensorView(const DLTensor* tensor) : m_tensor{} {
    RuntimeCheck(tensor != nullptr, "the tensor pointer is null");
    m_tensor = *tensor;
  }

  /// \brief From a view with the same accessors.
  template <details::ForeignTensorView T>
    requires(!traits::same_as<T, TensorView>)
  TensorView(const T& view) : m_tensor{} {
    m_tensor.data = const_cast<void*>(static_cast<const void*>(view.data_ptr()));
    m_tensor.device = view.device();
    m_tensor.ndim = view.ndim();
    m_tensor.dtype = view.dtype();
    m_tensor.shape = const_cast<std::int64_t*>(view.shape().data());
    m_tensor.strides = const_cast<std::int64_t*>(view.strides().data());
    if constexpr (requires { view.byte_offset(); }) m_tensor.byte_offset = view.byte_offset();
  }

  /// \brief Number of dimensions.
  std::int32_t ndim() const noexcept {
    return m_tensor.ndim;
  }
  /// \brief Number of dimensions, by PyTorch's name.
  std::int32_t dim() const noexcept {
    return m_tensor.ndim;
  }
  ShapeView shape() const noexcept {
    return {m_tensor.shape, static_cast<std::size_t>(m_tensor.ndim)};
  }
  /// \brief The sizes, by PyTorch's name.
  ShapeView sizes() const noexcept {
    return shape();
  }
  /// \brief The strides, in elements. Needs a strides array from the producer; `stride(i)` works without one.
  ShapeView strides() const {
    RuntimeCheck(m_tensor.strides != nullptr || m_tensor.ndim == 0, "the tensor has no strides array; use stride(i)");
    return {m_tensor.strides, static_cast<std::size_t>(m_tensor.ndim)};
  }
  /// \brief Size of dimension `index`; negative counts from the end.
  std::int64_t size(std::int64_t index) const {
    return m_tensor.shape[m_wrap(index)];
  }
  /// \brief Stride of dimension `index` in elements; negative counts from the end.
  std::int64_t stride(std::int64_t index) const {
    const auto i = m_wrap(index);
    return m_tensor.strides != nullptr ? m_tensor.strides[i] : m_dense_stride(i);
  }
  DLDataType dtype() const noexcept {
    return m_tensor.dtype;
  }
  DLDevice device() const noexcept {
    return m_tensor.device;
  }
  /// \brief Address of the first element.
  void* data_ptr() const noexcept {
    return m_tensor.data == nullptr ? nullptr : static_cast<char*>(m_tensor.data) + m_tensor.byte_offset;
  }
  std::uint64_t byte_offset() const noexcept {
    return m_tensor.byte_offset;
  }
  /// \brief Number of elements; 1 for a 0-d tensor.
  std::int64_t numel() const noexcept {
    std::uint64_t count = 1;  // unsigned: an absurd shape wraps around, with no undefined behaviour
    for (const auto size : shape()) count *= static_cast<std::uint64_t>(size);
    return static_cast<std::int64_t>(count);
  }
  /// \brief Whether the elements are in row-major order without gaps. As in PyTorch, the stride of a dimension of
  /// size 1 does not matter, and a tensor without elements is contiguous.
  SGL_INLINE bool is_contiguous() const noexcept;
  /// \brief The same, by tvm-ffi's name.
  bool IsContiguous() const noexcept {
    return is_contiguous();
  }
  /// \brief The `DLTensor` behind the view, for code that uses DLPack.
  const DLTensor& dl_tensor() const noexcept {
    return m_tensor;
  }

 private:
  std::int32_t m_wrap(std::int64_t index) const {
    const auto wrapped = index < 0 ? index + m_tensor.ndim : index;
    if (wrapped < 0 || wrapped >= m_tensor.ndim) [[unlikely]]
      m_refuse(index);
    return static_cast<std::int32_t>(wrapped);
  }
  [[noreturn, gnu::cold]] SGL_INLINE void m_refuse(std::int64_t index) const;

  /// Without an array, DLPack before 1.2, the tensor is contiguous.
  [[gnu::cold]] SGL_INLINE std::int64_t m_dense_stride(std::int32_t index) const noexcept;

  DLTensor m_tensor;
};

/// \brief Prints as `Tensor<2, 3>[strides=<3, 1>, dtype=float32, device=cpu]`.
[[gnu::cold]] SGL_INLINE void append_to(Message& message, const TensorView& view);

}  // namespace host

#if SGL_BODIES

namespace host {

SGL_INLINE void TensorView::m_refuse(std::int64_t index) const {
  details::raise(
      "IndexError", {"dimension ", index, " is out of range for a tensor of ", m_tensor.ndim, " dimensions"});
}

SGL_INLINE std::int64_t TensorView::m_dense_stride(std::int32_t index) const noexcept {
  std::uint64_t stride = 1;
  for (auto i = m_tensor.ndim - 1; i > index; --i) stride *= static_cast<std::uint64_t>(m_tensor.shape[i]);
  return static_cast<std::int64_t>(stride);
}

SGL_INLINE bool TensorView::is_contiguous() const noexcept {
  if (m_tensor.strides == nullptr) return true;
  bool dense = true;
  std::uint64_t expected = 1;
  for (auto i = m_tensor.ndim - 1; i >= 0; --i) {
    const auto size = m_tensor.shape[i];
    if (size == 0) return true;
    if (size != 1 && static_cast<std::uint64_t>(m_tensor.strides[i]) != expected) dense = false;
    expected *= static_cast<std::uint64_t>(size);
  }
  return dense;
}

SGL_INLINE void append_to(Message& message, const TensorView& view) {
  message << "Tensor<";
  for (std::int32_t i = 0; i < view.ndim(); ++i) message << (i > 0 ? ", " : "") << view.size(i);
  message << ">[strides=<";
  for (std::int32_t i = 0; i < view.ndim(); ++i) message << (i > 0 ? ", " : "") << view.stride(i);
  message << ">, dtype=" << view.dtype() << ", device=" << view.device() << ']';
}

}  // namespace host

#endif  // SGL_BODIES
