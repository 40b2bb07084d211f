#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/signature.h>

/// \file impl/row_program_params.h
/// \brief The interface of `host::RowProgram`, its kernels and its loops for the CPU. Read by every compiler.

namespace sgl {

/// \brief What few operands have: an index, whose element number `outer` is in place of outer; and in bytes the
/// distance of the values of groups, and how much further away a row of an index is for each block that is before its
/// own.
struct RowPlace {
  const void* index;
  long long group_stride;
  long long block_gap;
  unsigned long long block_inverse;  ///< 2^64 / the rows of a block, rounded up; 0 for no blocks
  SGL_FIELDS(index, group_stride, block_gap, block_inverse)
};

/// \brief How an operand's rows are found, four bits for each operand of a program: by an index of int32; by one of
/// int64; one row for all rows, which nobody writes; one value for each row, or of the bytes of groups, four to a word.
inline constexpr unsigned kIndexed = 1, kLongIndexed = 2, kForAll = 4, kOneValue = 8;
/// \brief Among these bits: no segment has inner rows; one has counts; rows of an index lie in blocks, others repeat.
inline constexpr unsigned long long kIsFlat = 1ull << 63, kIsCounted = 1ull << 62, kInBlocks = 1ull << 61,
                                    kRepeats = 1ull << 60;
/// \brief What a program is, two bits for each segment: each element is computed from the same element of the others; a
/// row keeps values in memory of its own.
inline constexpr unsigned kIsMap = 1, kKeeps = 2;
/// \brief The most operands of a program.
enum : int { kMostOperands = 15 };

/// \brief The element types of operands, four bits for each operand of a program.
enum : unsigned {  // no variables, see device::details::is_same
  kFp32,
  kFp16,
  kBf16,
  kFp8E4M3,
  kFp8E5M2,
  kInt32,
  kInt64,
  kInt8,
  kUInt8,
  kNoElement = 15,
};
/// \brief Element types with fp8 among them: the core includes fp8.cuh for a kernel whose name has this type.
enum TypesWithFp8 : unsigned long long {};

namespace details {
/// One of a list of types: of those of an element, in the order above.
template <unsigned kCode, typename First, typename... Rest>
struct TypeAt : TypeAt<kCode - 1, Rest...> {};
template <typename First, typename... Rest>
struct TypeAt<0, First, Rest...> {
  using type = First;
};
}  // namespace details

/// \brief The largest magnitude that elements of a type have on both sides of zero; 0 for types that nobody quantises
/// to.
SGL_UNCALLED constexpr float largest_of(unsigned code) {
  return code == kInt8 ? 127.0f : code == kFp8E4M3 ? 448.0f : code == kFp8E5M2 ? 57344.0f : 0.0f;
}

SGL_UNCALLED constexpr unsigned four_bits(unsigned long long bits, int operand) {
  return static_cast<unsigned>(bits >> 4 * operand & 15);
}

/// \brief n / d for an `inverse` of 2^64 / d, rounded up: exact while n * d is below 2^64.
SGL_HD long long divided(unsigned long long n, unsigned long long inverse) {
#if defined(__CUDA_ARCH__)
  return static_cast<long long>(__umul64hi(n, inverse));
#else
  __extension__ using wide_t = unsigned __int128;
  return static_cast<long long>(static_cast<wide_t>(n) * inverse >> 64);
#endif
}

/// \brief A set of rows, each of which the program takes by itself. Row r is (r / inner, r % inner) = (outer, inner
/// row), which an operand has at data + outer * stride + inner row * inner_stride.
///
/// A kernel waits some 100 ns for the first of each 64 bytes. So what every kernel reads comes first. With three to
/// five operands `triggers_first`, which it reads at once, is in the second 64 bytes: it waits for both at the same
/// time.
template <int kOperands>
struct RowSegment {
  void* data[kOperands];
  long long stride[kOperands];
  long long inner_stride[kOperands];
  bool triggers_first;  ///< in the first segment: the next kernel may start before this one has issued its loads
  long long first_block;
  long long num_rows;
  long long inner;
  unsigned long long inverse;         ///< 2^64 / inner, rounded up; 0 for an inner of 1
  long long vectors;                  ///< of a row; the last may be a part of one
  unsigned long long vector_inverse;  ///< 2^64 / vectors, rounded up; 0 for one
  long long columns;
  long long paired;    ///< the first elements of a row, which make pairs; 0 for none
  const void* counts;  ///< int32: how many inner rows of each outer one there are; null for all
  RowPlace places[kOperands];
  SGL_FIELDS(
      data, stride, inner_stride, triggers_first, first_block, num_rows, inner, inverse, vectors, vector_inverse,
      columns, paired, counts, places)

  /// \brief Where an operand has row (outer, inner_row), unless it has one row for all; `outer` is an element of its
  /// index if it has one.
  /// \tparam kPlaces of all operands.
  template <unsigned long long kPlaces>
  SGL_HD void* find(int operand, long long outer, long long inner_row) const {
    char* row = static_cast<char*>(data[operand]) + outer * stride[operand];
    if ((kPlaces & ((four_bits(kPlaces, operand) & (kIndexed | kLongIndexed)) != 0 ? kInBlocks : kRepeats)) != 0)
      row += divided(outer, places[operand].block_inverse) * places[operand].block_gap;
    if ((kPlaces & kIsFlat) == 0) row += inner_row * inner_stride[operand];
    return row;
  }
};

/// \brief The parameters of a program.
template <int kOperands, int kSegments>
struct RowProgramParams {
  RowSegment<kOperands> segments[kSegments];
  long long kept;  ///< values that the CPU keeps of a row
  SGL_FIELDS(segments, kept)
};

/// \brief How a device holds the rows of one segment. A kernel gets it as one number.
struct RowShape {
  enum : unsigned { kMostColumns = (1u << 20) - 1 };

  unsigned columns;        ///< elements of a row, held in registers; 0: any number, read again in each pass
  unsigned paired;         ///< the first elements of a row, which make pairs
  unsigned elements;       ///< of a vector
  unsigned threads;        ///< that share a row
  bool is_map = false;     ///< each thread has one vector, of any row
  bool has_tail = false;   ///< in a map: the last vector of a row is a part of one; else, with columns of 0: vectors
                           ///< begin at the first multiple of their size, and elements are left on both sides
  unsigned blocks = 1;     ///< that share a row, a cluster of 1, 2, 4 or 8
  bool is_double = false;  ///< each thread has two rows, inner ones of the same outer row

  SGL_UNCALLED constexpr unsigned long long number() const {
    const auto at = [](unsigned long long bits, int place) { return bits << place; };
    const unsigned doublings = (blocks > 1) + (blocks > 2) + (blocks > 4);
    return columns | at(paired, 20) | at(elements, 40) | at(is_map, 46) | at(has_tail, 47) | at(threads, 48) |
           at(doublings, 60) | at(is_double, 62);
  }
  SGL_UNCALLED static constexpr RowShape of(unsigned long long number) {
    return {
        static_cast<unsigned>(number) & kMostColumns,
        static_cast<unsigned>(number >> 20) & kMostColumns,
        static_cast<unsigned>(number >> 40) & 63,
        static_cast<unsigned>(number >> 48) & 4095,
        (number >> 46 & 1) != 0,
        (number >> 47 & 1) != 0,
        1u << (number >> 60 & 3),
        (number >> 62 & 1) != 0,
    };
  }
};

}  // namespace sgl
