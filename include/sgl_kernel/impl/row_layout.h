#pragma once

/// \file impl/row_layout.h
/// \brief How many threads of a device share a row of a row reduction. Host only.

namespace sgl {

/// \brief How many threads hold a row in registers, and how many a block has: a multiple, for rows of one warp or less.
struct RowLayout {
  unsigned threads_per_row;
  unsigned block_threads;

  constexpr unsigned rows_per_block() const {
    return block_threads / threads_per_row;
  }
};

/// \brief The most vectors of one input that a thread holds.
inline constexpr unsigned kMaxRowVectors = 4;

/// \brief The layout of rows of `vectors` vectors, by measurement on an H200.
///
/// Few rows are spread thin, a vector for each thread, since latency is all that counts. Of many rows a thread holds
/// four vectors of all inputs together, so that few blocks keep memory busy while others wait in their reductions; but
/// a block has 128 threads at least, for the four schedulers of a multiprocessor. A warp takes a row that fits into it.
struct ChooseRowLayout {
  constexpr RowLayout operator()(unsigned vectors, unsigned num_inputs, long long num_rows, unsigned num_sms) const {
    constexpr unsigned kWarp = 32;
    const auto ceil = [](unsigned a, unsigned b) { return (a + b - 1) / b; };
    const unsigned most = num_inputs >= 4 ? 1 : 4 / num_inputs;
    const bool is_few = num_rows < 2 * static_cast<long long>(num_sms);
    if (vectors <= kWarp * (is_few ? 1 : most)) {
      unsigned threads = 1;
      while (threads < kWarp && threads < vectors) threads *= 2;
      return {threads, 128};
    }
    unsigned held = most;
    if (vectors <= 1024 && is_few) held = 1;
    else if (vectors <= 768 && num_rows < 4 * static_cast<long long>(num_sms)) held = ceil(most, 2);
    else if (vectors < 128 * most) held = ceil(vectors, 128);
    while (ceil(vectors, held) > 1024) ++held;
    const unsigned threads = ceil(ceil(vectors, held), kWarp) * kWarp;
    return {threads, threads};
  }
};

}  // namespace sgl
