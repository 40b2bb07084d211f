#pragma once

#include <sgl_kernel/impl/word.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

/// \file memory_rows.h
/// \brief How rows lie in memory: the widest word that moves them, and whether they share memory. No row may read or
/// write the output of another row, or the result would depend on the order of the rows. Host only.

namespace host {

/// \brief The bytes, a power of two up to `sgl::kWordBytes`, of the widest word that all `values` are multiples of:
/// addresses, and distances in bytes.
template <typename... Values>
[[nodiscard]] std::int64_t widest_word(const Values&... values) {
  const auto bits = (std::uintptr_t{sgl::kWordBytes} | ... | (std::uintptr_t)values);  // of a pointer or an integer
  return static_cast<std::int64_t>(bits & (~bits + 1));                                // the lowest bit
}

/// \brief The rows along one dimension.
struct RowDimension {
  std::int64_t count = 1;
  std::int64_t stride = 0;

  std::int64_t extent() const {
    return (count - 1) * stride;
  }
  bool operator==(const RowDimension&) const = default;
};

/// \brief Rows in memory, in bytes: row (i, j) is the `width` bytes at begin + i * outer.stride + j * inner.stride.
struct MemoryRows {
  std::intptr_t begin;
  std::int64_t width;
  RowDimension outer;
  RowDimension inner;
  std::intptr_t first;      ///< where row (0, 0) begins; not at `begin` if a stride was negative
  bool is_swapped = false;  ///< whether the dimensions came in the other order, the shorter stride first

  /// \brief Dimensions in any order, of any stride.
  MemoryRows(const void* data, std::int64_t row_width, RowDimension a = {}, RowDimension b = {})
      : begin(reinterpret_cast<std::intptr_t>(data)), width(row_width), first(begin) {
    begin += s_forward(a) + s_forward(b);
    const bool is_ordered = a.stride >= b.stride;
    is_swapped = !is_ordered && a.count > 1;
    outer = is_ordered ? a : b;
    inner = is_ordered ? b : a;
  }

  bool is_empty() const {
    return width == 0 || outer.count == 0 || inner.count == 0;
  }
  /// \brief Whether each row is the same row of the other.
  bool operator==(const MemoryRows&) const = default;

 private:
  /// Makes the stride of a dimension at least 0; returns how far the first byte moves.
  static std::int64_t s_forward(RowDimension& dimension) {
    if (dimension.count == 1) dimension.stride = 0;  // a single row's stride has no meaning
    if (dimension.stride >= 0) return 0;
    const auto moved = dimension.extent();
    dimension.stride = -dimension.stride;
    return moved;
  }
};

/// \brief Whether rows of one tensor share memory with each other.
inline bool rows_overlap(const MemoryRows& rows) {
  if (rows.is_empty()) return false;
  const bool inner_overlap = rows.inner.count > 1 && rows.inner.stride < rows.width;
  const bool outer_overlap = rows.outer.count > 1 && rows.outer.stride < rows.inner.extent() + rows.width;
  return inner_overlap || outer_overlap;
}

/// \brief Whether any row of `a` shares memory with any row of `b`. The rows of each alone must not overlap. Returns
/// true in doubt: for interleaved rows of different strides.
inline bool rows_meet(const MemoryRows& a, const MemoryRows& b) {
  if (a.is_empty() || b.is_empty()) return false;
  const auto apart = [](std::int64_t distance, std::int64_t extent_a, std::int64_t extent_b) {
    return distance >= extent_a || -distance >= extent_b;
  };
  // Whether `a` and `b` are disjoint once both are folded into one period of their common stride.
  const auto folded = [](std::int64_t stride, std::int64_t distance, const auto& is_apart) {
    const auto rest = (distance % stride + stride) % stride;
    return is_apart(rest) && is_apart(rest - stride);
  };
  const auto stride_of = [](RowDimension x, RowDimension y) -> std::int64_t {
    if (x.count == 1 || y.count == 1) return x.stride + y.stride;  // of the one that has a stride
    return x.stride == y.stride ? x.stride : 0;
  };
  const auto inner_a = a.inner.extent() + a.width;
  const auto inner_b = b.inner.extent() + b.width;
  const auto inner_apart = [&](std::int64_t distance) {
    if (apart(distance, inner_a, inner_b)) return true;
    const auto stride = stride_of(a.inner, b.inner);
    return stride >= a.width && stride >= b.width &&
           folded(stride, distance, [&](std::int64_t d) { return apart(d, a.width, b.width); });
  };
  const auto distance = static_cast<std::int64_t>(b.begin - a.begin);
  if (apart(distance, a.outer.extent() + inner_a, b.outer.extent() + inner_b)) return false;
  const auto stride = stride_of(a.outer, b.outer);
  if (stride == 0) return !inner_apart(distance) || a.outer.count > 1 || b.outer.count > 1;
  return !(stride >= inner_a && stride >= inner_b && folded(stride, distance, inner_apart));
}

/// \brief Whether to check the indices of rows: as SGLJIT_CHECK_INDICES says, 1 or 0; else if SGLJIT_CHECK is 1; else
/// `otherwise`. The variables are read once.
inline bool checks_indices(bool otherwise) {
  enum class Setting { kNone, kOff, kOn };
  static const Setting setting = [] {
    const char* text = std::getenv("SGLJIT_CHECK_INDICES");
    if (text == nullptr || text[0] == '\0') {
      text = std::getenv("SGLJIT_CHECK");
      return text != nullptr && std::strcmp(text, "1") == 0 ? Setting::kOn : Setting::kNone;
    }
    return std::strcmp(text, "0") == 0 ? Setting::kOff : Setting::kOn;
  }();
  return setting == Setting::kNone ? otherwise : setting == Setting::kOn;
}

}  // namespace host
