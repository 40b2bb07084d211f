#pragma once

#include <sgl_kernel/cpu/row_job.h>
#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/utils.h>
#include <sgl_kernel/variant.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

/// \file impl/row_op.h
/// \brief The common part of the row operations on the host: what they ask of a functor, and their loops for the CPU,
/// by the types of the elements.

namespace host::details {

using sgl::details::as_values, sgl::details::declare;

/// The functor of a call that passes none.
template <typename F>
F without_fields() {
  static_assert(__is_empty(F), "this functor has fields: pass their values after the outputs, such as {scale, shift}");
  return {};
}

/// An argument of a call, by its index.
template <std::size_t>
inline constexpr float kAny = 0;

/// Whether a functor maps a float for each index to the outputs of a row map. Asked where the host part is compiled:
/// the kernel and the loop, which call it, are compiled when they are first needed.
template <typename F, int kOutputs, typename Inputs>
inline constexpr bool kMapsRows = false;
template <typename F, int kOutputs, std::size_t... I>
inline constexpr bool kMapsRows<F, kOutputs, Indices<I...>> = requires(const F& f) {
  { as_values(f(kAny<I>...)) } -> traits::same_as<sgl::Values<kOutputs>>;
};

/// The element types of row operations; the outputs may be of the last.
inline int element_index(DLDataType dtype) {
  return is_type<float>(dtype) ? 0 : is_type<__half>(dtype) ? 1 : is_type<__nv_bfloat16>(dtype) ? 2 : 3;
}

/// The address of the function `loop<functor, counts..., input, output>` of a file.
[[gnu::cold]] SGL_INLINE std::int64_t load_row_loop(
    const char* family, const char* file, const char* loop, Spelling functor, std::initializer_list<int> counts,
    DLDataType input, DLDataType output, const char* signature);

/// The loop of a row operation for the CPU: a function for each pair of element types, compiled when it is first
/// called.
/// \tparam kCounts the numbers of inputs, shared rows and outputs, as the loop takes them.
template <typename F, int... kCounts>
struct RowOpOnCpu {
 public:
  using Job = cpu::RowJob<(kCounts + ...)>;

  constexpr RowOpOnCpu(const char* file, const char* loop) noexcept : m_file(file), m_loop(loop) {}

  void operator()(DLDataType input, DLDataType output, const Job& job, const F& f) {
    auto& known = m_functions[element_index(input)][element_index(output)];
    auto function = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<function_t>(load_row_loop(
          SGL_FAMILY, m_file, m_loop, type_spelling<F>(), {kCounts...}, input, output, signature_name<function_t>()));
      __atomic_store_n(&known, function, __ATOMIC_RELEASE);
    }
    function(job, f);
  }

 private:
  using function_t = void (*)(const Job&, const F&);

  const char* m_file;
  const char* m_loop;
  function_t m_functions[3][4] = {};
};

}  // namespace host::details

#if SGL_BODIES

SGL_INLINE std::int64_t host::details::load_row_loop(
    const char* family, const char* file, const char* loop, Spelling functor, std::initializer_list<int> counts,
    DLDataType input, DLDataType output, const char* signature) {
  static constexpr const char* kElements[] = {"fp32_t", "fp16_t", "bf16_t", "fp8_e4m3_t"};
  Message symbol;
  symbol << loop << '<';
  symbol.append(functor.text, functor.size);
  for (const int count : counts) symbol << ", " << count;
  symbol << ", " << kElements[element_index(input)] << ", " << kElements[element_index(output)] << '>';
  return ask_core("sgljit.deferred", {family, file, symbol.c_str(), signature});
}

#endif  // SGL_BODIES
