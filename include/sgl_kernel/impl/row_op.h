#pragma once

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/variant.h>

#include <cstddef>

/// \file impl/row_op.h
/// \brief What the row operations have in common on the host: their loops for the CPU, by the types of the elements.

namespace host::details {

/// The element types of row operations, by the names that `KernelFamily.build_deferred` gives them.
inline constexpr Spelling kElementNames[] = {{"fp32_t", 6}, {"fp16_t", 6}, {"bf16_t", 6}, {"fp8_e4m3_t", 10}};

inline int element_index(DLDataType dtype) {
  return is_type<float>(dtype) ? 0 : is_type<__half>(dtype) ? 1 : is_type<__nv_bfloat16>(dtype) ? 2 : 3;
}

/// The C++ expression `kName<F, kCounts..., input, output>`, spelled at compile time.
template <const char* kName, typename F, int kInput, int kOutput, int... kCounts>
struct RowOpSymbol {
  static_assert(((kCounts >= 0 && kCounts <= 9) && ...), "a row operation has at most nine outputs");

  static constexpr std::size_t kSize = [] {
    std::size_t size = type_spelling<F>().size + 3 * sizeof...(kCounts) + sizeof("<, , >");
    size += kElementNames[kInput].size + kElementNames[kOutput].size;
    for (const char* letter = kName; *letter != '\0'; ++letter) ++size;
    return size;
  }();
  char text[kSize] = {};

  constexpr RowOpSymbol() {
    std::size_t size = 0;
    const auto append = [&](const char* part, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) text[size++] = part[i];
    };
    const auto append_count = [&](int count) {
      const char part[] = {',', ' ', static_cast<char>('0' + count)};
      append(part, sizeof(part));
    };
    for (const char* letter = kName; *letter != '\0'; ++letter) append(letter, 1);
    append("<", 1);
    append(type_spelling<F>().text, type_spelling<F>().size);
    (append_count(kCounts), ...);
    append(", ", 2);
    append(kElementNames[kInput].text, kElementNames[kInput].size);
    append(", ", 2);
    append(kElementNames[kOutput].text, kElementNames[kOutput].size);
    append(">", 1);
  }
};
template <const char* kName, typename F, int kInput, int kOutput, int... kCounts>
inline constexpr RowOpSymbol<kName, F, kInput, kOutput, kCounts...> kRowOpSymbol{};

/// The loop `kName` of a row operation for the CPU, one function for each pair of element types. Each is compiled when
/// it is first called.
template <const char* kName, typename Job, typename F, int... kCounts>
struct RowOpOnCpu {
 public:
  explicit constexpr RowOpOnCpu(const char* file) noexcept
      : m_functions{{file, s_symbol<0, 0>}, {file, s_symbol<0, 1>}, {file, s_symbol<0, 2>}, {file, s_symbol<0, 3>},
                    {file, s_symbol<1, 0>}, {file, s_symbol<1, 1>}, {file, s_symbol<1, 2>}, {file, s_symbol<1, 3>},
                    {file, s_symbol<2, 0>}, {file, s_symbol<2, 1>}, {file, s_symbol<2, 2>}, {file, s_symbol<2, 3>}} {}

  void operator()(DLDataType input, DLDataType output, const Job& job, const F& f) {
    m_functions[4 * element_index(input) + element_index(output)](job, f);
  }

 private:
  template <int kInput, int kOutput>
  static constexpr const char* s_symbol = kRowOpSymbol<kName, F, kInput, kOutput, kCounts...>.text;

  Deferred<void(const Job&, const F&)> m_functions[12];
};

}  // namespace host::details
