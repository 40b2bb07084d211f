#pragma once

#include <sgl_kernel/impl/tuned/h100.h>
#include <sgl_kernel/runtime.h>

/// \file impl/row_layout.h
/// \brief How many threads of a device share a row that it holds in registers. Host only.

namespace sgl {

/// \brief The most blocks of a grid.
inline constexpr long long kMaxBlocks = 0x7fffffff;

/// \brief How many threads hold a row in registers, and how many a block has: a multiple, for rows of one warp or less.
struct RowLayout {
  unsigned threads_per_row;  ///< 0: a kernel for any size reads the row several times, a block for each row
  unsigned block_threads;
  /// Whether the next kernel may start before this one has issued its loads: it is there earlier, and takes room.
  bool triggers_first;

  constexpr bool is_resident() const {
    return threads_per_row != 0;
  }
  constexpr long long num_blocks(long long num_rows) const {
    if (!is_resident()) return num_rows < kMaxBlocks ? num_rows : kMaxBlocks;
    const unsigned rows_per_block = block_threads / threads_per_row;
    return (num_rows + rows_per_block - 1) / rows_per_block;
  }
};

/// \brief The work of a row program: its inputs, and its passes over them.
enum class RowWork { kOneInput, kMoreInputs, kTwoPasses };

/// \brief The most vectors of a row that is held in registers: four for each thread of the largest block.
inline constexpr unsigned kMaxRowVectors = 4096;

/// \brief The column of the table: up to 1/8, 1, 2, 3, 4, 6 and 8 rows for each multiprocessor, or more.
constexpr int row_column(long long num_rows, unsigned num_sms) {
  int column = 0;
  constexpr long long kEighths[] = {1, 8, 16, 24, 32, 48, 64};
  for (const long long eighths : kEighths) column += 8 * num_rows > eighths * num_sms;
  return column;
}

/// \brief The threads that share a row, whole warps, on a chip that nobody tuned: each holds as few vectors as keep all
/// rows on the chip at once. A thread that holds one waits for its sum as long as one that holds several; one that
/// holds many has no registers left for a second row.
/// \param least vectors that each holds of a long row.
constexpr unsigned threads_by_rule(
    unsigned vectors, RowWork work, long long num_rows, const host::runtime::Chip& chip, unsigned least = 2) {
  constexpr unsigned kWarp = 32, kMostThreads = 1024, kManyRows = 64;
  const auto ceil = [](unsigned a, unsigned b) { return (a + b - 1) / b; };
  if (vectors <= 4 * kWarp) least = 1;
  const unsigned most = work == RowWork::kTwoPasses ? 8 : 4;
  const unsigned rows =
      num_rows < kManyRows * chip.num_sms ? ceil(static_cast<unsigned>(num_rows), chip.num_sms) : kManyRows;
  unsigned held = ceil(vectors * rows, chip.threads_per_sm);
  held = held < least ? least : held > most ? most : held;
  if (held < ceil(vectors, kMostThreads)) held = ceil(vectors, kMostThreads);
  return ceil(ceil(vectors, held), kWarp) * kWarp;
}

/// \brief The layout of rows of `vectors` vectors, at most `kMaxRowVectors`.
struct ChooseRowLayout {
  constexpr RowLayout operator()(
      unsigned vectors, RowWork work, long long num_rows, const host::runtime::Chip& chip) const {
    constexpr unsigned kWarp = 32;
    unsigned threads = 0;
    bool triggers_first = false;
    if (chip.cc_major == 9 && chip.cc_minor == 0) {
      const TunedRows* line = kRowsOnH100[static_cast<int>(work)];
      while (line->vectors < vectors) ++line;
      const int column = row_column(num_rows, chip.num_sms);
      threads = line->threads_per_row[column];
      triggers_first = line->triggers_first[column];
      // A size between two lines gets as many vectors for each thread as the larger one.
      const auto ceil = [](unsigned a, unsigned b) { return (a + b - 1) / b; };
      if (vectors < line->vectors) threads = ceil(ceil(vectors, ceil(line->vectors, threads)), kWarp) * kWarp;
    } else {
      threads = threads_by_rule(vectors, work, num_rows, chip);
    }
    if (threads > kWarp) return {threads, threads, triggers_first};
    threads = 1;
    while (threads < kWarp && threads < vectors) threads *= 2;
    return {threads, threads == kWarp && vectors <= kWarp ? 256u : 128u, triggers_first};
  }
};

/// \brief The layout of a program. With `kIsBusy` it takes long to compute an element, such as an exponential: one
/// vector a thread, where there is room for it, and several blocks for each of a few long rows, which is `share_row`'s
/// part. The tables are of programs that wait for memory alone.
template <bool kIsBusy>
struct ChooseLayoutOf : ChooseRowLayout {};

template <>
struct ChooseLayoutOf<true> {
  constexpr RowLayout operator()(
      unsigned vectors, RowWork work, long long num_rows, const host::runtime::Chip& chip) const {
    constexpr unsigned kWarp = 32, kFewVectors = 64, kMostThreads = 1024;
    if (vectors <= kFewVectors) return ChooseRowLayout{}(vectors, work, num_rows, chip);
    if (vectors > kMostThreads && 8 * num_rows <= chip.num_sms && chip.has_clusters()) return {0, kMostThreads, false};
    const unsigned threads = threads_by_rule(vectors, work, num_rows, chip, 1);
    return {threads, threads > kWarp ? threads : 4 * kWarp, false};
  }
};

/// \brief The layout of rows of any size, of `vectors` vectors. The threads of a block are a power of two: so rows of
/// all sizes share a few kernels.
constexpr RowLayout generic_layout(long long vectors) {
  unsigned threads = 32;
  while (threads < 1024 && threads < vectors) threads *= 2;
  return {0, threads, false};
}

/// \brief For `RowProgram`: a few kernels serve rows of any number of columns, and read them again in each pass. For
/// sizes that change from call to call, which would each be a kernel of its own.
struct AnyColumns {
  constexpr RowLayout operator()(unsigned vectors, RowWork, long long, const host::runtime::Chip&) const {
    return generic_layout(vectors);
  }
};

/// \brief The layout of rows of `columns` elements that are loaded by `elements`, which divide them.
/// \param choose the layout of rows that are held.
template <typename Choose = ChooseRowLayout>
constexpr RowLayout layout_rows(
    long long columns, long long elements, long long element_bytes, RowWork work, long long num_rows,
    const host::runtime::Chip& chip, const Choose& choose = {}) {
  const long long vectors = columns / elements;
  if (elements > 1 && elements * element_bytes >= 8 && vectors > 0 && vectors <= kMaxRowVectors) {
    const RowLayout layout = choose(static_cast<unsigned>(vectors), work, num_rows, chip);
    if (layout.num_blocks(num_rows) <= kMaxBlocks) return layout;
  }
  return generic_layout(vectors);
}

/// \brief How blocks share a long row.
struct SharedRow {
  unsigned blocks = 1;
  unsigned threads = 0;  ///< of each
  bool is_held = false;  ///< in registers; else it is read in each pass
};

/// \brief The blocks of a cluster that share a row of `vectors` vectors. As few as hold it in registers, so that it is
/// read once; and more where few rows would leave multiprocessors without one.
/// \param elements of a vector; 0 if holding the row gains nothing: its vectors are narrow, or one pass reads it.
constexpr SharedRow share_row(
    long long vectors, long long elements, long long num_rows, const host::runtime::Chip& chip) {
  constexpr long long kMostBlocks = 8, kMostThreads = 1024, kWarp = 32, kMostFloats = 80;
  if (!chip.has_clusters()) return {};
  const auto ceil = [](long long a, long long b) { return (a + b - 1) / b; };
  // Blocks that hold a row are small, so that a multiprocessor has several: one reduces while others load and store.
  const auto fits = [&](long long threads) { return ceil(vectors, threads) * elements <= kMostFloats; };
  const long long small = fits(kMostBlocks * 256) ? 256 : 512;
  const bool is_held = elements > 0 && fits(kMostBlocks * small);
  const long long most_threads = is_held ? small : kMostThreads;
  long long blocks = is_held ? 2 : 1;
  while (blocks < kMostBlocks && ((is_held && !fits(blocks * most_threads)) ||
                                  (2 * blocks * num_rows <= chip.num_sms && vectors >= 2 * blocks * most_threads)))
    blocks *= 2;
  if (blocks == 1 || blocks * num_rows > kMaxBlocks) return {};
  const auto held = ceil(vectors, blocks * most_threads);
  const auto threads = is_held ? ceil(ceil(vectors, blocks * held), kWarp) * kWarp : kMostThreads;
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(threads), is_held};
}

}  // namespace sgl
