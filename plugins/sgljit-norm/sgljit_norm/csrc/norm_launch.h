#pragma once

#include <sgl_kernel/runtime.h>
#include <sgl_kernel/utils.h>
#include <sgl_kernel/variant.h>

#include <cstdint>

#include "norm_params.h"

/// \file norm_launch.h
/// \brief The choice of a kernel and its launch: rows in registers, or rows of any size.

inline constexpr std::int64_t kMaxBlocks = 0x7fffffff;  // of a grid

/// \brief Rows of one size, and the properties that decide the kernel.
struct RowsLaunch {
  DLDevice device;
  bool pdl;  ///< programmatic dependent launch
  unsigned element_bytes;
  std::int64_t num_rows;
  std::int64_t size;
  unsigned num_inputs;
  unsigned load_bytes;  ///< the widest load that divides all addresses, strides and sizes

  /// \param values addresses, and strides in bytes.
  /// All are multiples of the element size, see `check_aligned`.
  template <typename... Values>
  RowsLaunch(
      DLDevice on, DLDataType dtype, std::int64_t rows, std::int64_t row_size, unsigned inputs, const Values&... values)
      : device(on), element_bytes(dtype.bits / 8), num_rows(rows), size(row_size), num_inputs(inputs) {
    const int major = host::runtime::get_cc_major(device.device_id);
    pdl = major >= 9;
    const std::uint64_t widest = major >= 10 ? 32 : 16;
    const std::uint64_t bits =
        (widest | ... | (std::uint64_t)values) | static_cast<std::uint64_t>(row_size * element_bytes);
    load_bytes = static_cast<unsigned>(bits & (~bits + 1));  // the lowest bit
  }

  std::int64_t row_bytes() const {
    return size * element_bytes;
  }
  bool fits_registers() const {
    return load_bytes >= 16 && row_bytes() > 0 && row_bytes() <= norm_kernels::kMaxRowBytes;
  }
  norm_kernels::Layout layout() const {
    return norm_kernels::layout_of(row_bytes(), load_bytes, num_inputs);
  }

  /// \brief Launches one block of `block_threads` for each `rows_per_block` rows.
  template <typename Params>
  void in_registers(const host::VariantOf<Params>& kernel, const Params& params) const {
    const auto rows = layout();
    host::LaunchKernel(host::div_ceil(num_rows, rows.rows_per_block()), rows.block_threads, device)
        .enable_pdl(pdl)(kernel, params);
  }

  /// \brief The number of elements in one load of a thread, for rows of any size.
  std::int64_t elements() const {
    return (load_bytes < 16 ? load_bytes : 16) / element_bytes;
  }
  /// \brief Launches a block for each row, up to the size limit of a grid.
  template <typename Params>
  void any_size(const host::VariantOf<Params>& kernel, const Params& params) const {
    constexpr std::int64_t kMaxThreads = 1024;
    const auto threads = host::div_ceil(size / elements(), 32) * 32;
    host::LaunchKernel(
        num_rows < kMaxBlocks ? num_rows : kMaxBlocks, threads < kMaxThreads ? threads : kMaxThreads, device)
        .enable_pdl(pdl)(kernel, params);
  }
};
