#pragma once

/// \file impl/row_layout.h
/// \brief How many threads of a device share a row of a row reduction. Host only.

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

/// \brief The work of a row reduction: its inputs, and its passes over them.
enum class RowWork { kOneInput, kMoreInputs, kTwoPasses };

/// \brief The most vectors of a row that is held in registers: four for each thread of the largest block.
inline constexpr unsigned kMaxRowVectors = 4096;

/// \brief A line of the table of layouts: the threads that share a row of up to so many vectors. Its columns are for
/// numbers of rows, by `row_column`. 32: a warp, or a part of one. A negative number: as many, and `triggers_first`.
struct RowLayoutLine {
  unsigned vectors;
  int threads[8];
};

/// \brief The column of the table: up to 1/8, 1, 2, 3, 4, 6 and 8 rows for each multiprocessor, or more.
constexpr int row_column(long long num_rows, unsigned num_sms) {
  int column = 0;
  constexpr long long kEighths[] = {1, 8, 16, 24, 32, 48, 64};
  for (const long long eighths : kEighths) column += 8 * num_rows > eighths * num_sms;
  return column;
}

// Fastest on an H200 with 16-byte vectors of bf16 (3072 vectors: of float32), in microseconds of graphs of calls:
// `python -m sgljit_norm.bench.tune` prints these lines, and Python reads them here.
inline constexpr RowLayoutLine kRowLayouts[3][42] = {
    // clang-format off
    {  // one input
      {  32, {  -32,   -32,   -32,   -32,   -32,   -32,   -32,   -32}},
      {  64, {   64,    64,   -64,   -64,   -64,    32,    32,    32}},
      {  72, {   64,    96,    96,   128,   128,    32,    32,    32}},
      {  96, {   96,    96,    96,    96,    96,    96,   -96,   -32}},
      { 112, {   64,   128,   128,    64,    64,    64,    32,    32}},
      { 120, {   64,   128,   128,   128,   128,   128,   128,    32}},
      { 128, {  128,  -128,  -128,   128,  -128,   128,   128,    32}},
      { 144, {   96,   160,    96,    96,    96,   128,    96,    32}},
      { 160, {  160,   160,   160,   160,   160,    96,    96,    32}},
      { 192, {  192,    96,   192,    96,    96,    96,    96,    96}},
      { 200, {  128,  -128,   128,   128,   128,   128,    64,  -128}},
      { 256, { -128,   128,   128,   128,   128,   128,    64,   -64}},
      { 280, {   96,    96,    96,    96,    96,    96,    96,    96}},
      { 288, {   96,    96,    96,    96,    96,    96,    96,    96}},
      { 320, {  160,  -160,   160,   128,   128,   128,  -160,    64}},
      { 360, {  128,  -192,   128,   128,   128,   128,  -128,   192}},
      { 384, {  128,  -128,   128,   128,   128,   128,   128,  -192}},
      { 400, { -224,   224,  -224,  -224,   224,   224,   160,  -160}},
      { 448, { -160,   448,   448,   448,   448,   224,  -160,  -224}},
      { 480, { -480,   480,   480,   480,   480,  -256,  -160,   160}},
      { 512, { -128,   512,   512,   512,  -512,   256,   128,   256}},
      { 568, { -192,   256,   192,  -192,   288,   192,  -192,  -192}},
      { 576, { -192,   288,   288,  -192,  -288,  -192,  -192,  -192}},
      { 600, { -320,   224,   224,   224,   224,  -320,   160,  -160}},
      { 640, { -224,   320,   224,  -320,  -224,   320,   320,   384}},
      { 672, { -224,   672,  -672,   672,   224,  -224,   224,  -352}},
      { 720, { -192,   256,   256,  -192,  -384,  -192,  -192,  -384}},
      { 768, { -192,   384,   768,   384,  -384,   192,  -192,  -384}},
      { 832, {  224,   224,   416,   416,   288,   224,   288,   416}},
      { 896, {  224,   448,   448,   448,   224,   224,  -224,   224}},
      { 960, {  480,   480,   480,   480,   320,   320,  -256,  -320}},
      {1024, {  352,   512, -1024,   352,  -224,  -256,  -256,  -352}},
      {1152, {  384,   384,  -384,   384,   288,  -288,   288,   384}},
      {1280, {  448,   320,   640,   320,   160,  -320,  -320,   320}},
      {1408, {  480,   480,  -704,   352,   352,   480,   352,   352}},
      {1536, {  512,   512,  -512,   384,   384,   384,  -384,   384}},
      {1664, {  576,   576,   576,  -256,   288,  -288,   256,  -288}},
      {1792, { -608,   608,   448,   128,  -128,  -128,   608,   608}},
      {1920, { -640,   480,   480,  -256,  -160,  -160,   160,   480}},
      {2048, {  704,   704,   512,   704,   160,   704,  -704,   512}},
      {3072, {  640,  1024, -1024,  -384, -1024, -1024,  -384,  -384}},
      {4096, { 1024,  1024,  1024,  1024,  1024,  1024,  1024,  1024}},
    },
    {  // more inputs
      {  32, {  -32,   -32,   -32,   -32,   -32,   -32,   -32,   -32}},
      {  64, {   64,    64,   -64,   -64,    64,    32,    32,    32}},
      {  72, {   64,    96,    96,    96,    96,    96,    96,    32}},
      {  96, {   96,    96,    96,    96,    96,    96,    96,    96}},
      { 112, {   64,   128,   128,   128,   128,    64,    64,    32}},
      { 120, {   64,   128,   128,   128,   128,    64,    64,    64}},
      { 128, {  128,   128,   128,   128,   128,    64,    64,    64}},
      { 144, {   96,   160,   160,   160,   160,    96,    64,    64}},
      { 160, {  160,   160,   160,   160,   160,   160,   -96,    96}},
      { 192, {  192,   192,   192,    96,    96,    96,   -96,    96}},
      { 200, {  128,   224,   224,   128,   128,   128,    64,    64}},
      { 256, {  128,   128,   128,   128,   128,    64,    64,    64}},
      { 280, { -160,   288,   288,   288,    96,    96,    96,    96}},
      { 288, { -288,   288,   288,   128,    96,    96,    64,   -64}},
      { 320, { -320,   384,   384,   128,   160,    64,   160,    64}},
      { 360, { -192,   384,   384,   128,   128,   256,   192,   192}},
      { 384, { -384,   192,   384,   192,  -192,   256,   192,   192}},
      { 400, {  416,   416,   416,  -224,  -128,   128,   128,  -224}},
      { 448, { -448,   448,   448,  -224,   448,   256,   128,  -224}},
      { 480, { -480,   480,   480,   128,   480,   256,   -64,  -128}},
      { 512, {  512,   512,   512,   128,   512,   192,   128,  -128}},
      { 568, {  192,   256,   192,  -192,   192,   192,  -128,   192}},
      { 576, {  288,   576,   288,   576,   288,  -192,   192,  -192}},
      { 600, {  224,   320,   224,  -160,   320,  -160,   224,  -608}},
      { 640, {  320,   320,   320,   640,   320,    96,   128,  -320}},
      { 672, {  224,   672,   256,  -672,   352,    96,  -224,  -672}},
      { 720, {  384,   384,   736,   256,   384,   256,  -384,   160}},
      { 768, {  192,   384,   384,   192,   384,  -128,   128,   160}},
      { 832, {  416,   416,   160,   416,  -160,  -416,  -160,  -224}},
      { 896, {  224,   896,   160,   448,   160,   128,   224,  -224}},
      { 960, {  960,   960,  -960,   480,   160,  -160,   320,   192}},
      {1024, {  256,  1024,  -256,  -256,    96, -1024,    96,   224}},
      {1152, {  192,   576,  -576,  -192,    96,  -576,  -576,  -384}},
      {1280, {  640,   640,   640,  -224,   160,  -160,  -640,  -448}},
      {1408, {  480,   704,  -480,   128,   128,   480,  -704,  -480}},
      {1536, {  512,   768,   512,  -192,   768,  -512,  -768,  -512}},
      {1664, {  576,  -832,   416,  -416,   416,   416,   416,   416}},
      {1792, {  448,  -896,   224,  -128,   448,   448,   448,   512}},
      {1920, {  960,   960,  -320,   320,  -384,   384,   320,   960}},
      {2048, { -384,  1024,  -256,   256,  -416,   416,  -416,  1024}},
      {3072, { 1024,   768,   512,   768,   768,   768,   768,   768}},
      {4096, { 1024,  1024,  1024,  1024,  1024,  1024,  1024,  1024}},
    },
    {  // two passes
      {  32, {  -32,   -32,   -32,   -32,   -32,   -32,   -32,   -32}},
      {  64, {   64,    64,    64,   -64,    64,    64,    32,    32}},
      {  72, {   96,    96,    96,    96,    96,    64,    96,   -32}},
      {  96, {   96,    96,    96,    96,    96,    96,    96,   -32}},
      { 112, {  -64,   128,   128,   128,    64,    64,    64,   -32}},
      { 120, {  -64,   128,   128,   128,    64,    64,    64,    32}},
      { 128, {  128,   128,   128,    64,    64,    64,    64,    32}},
      { 144, {  -96,    96,    96,    96,    96,    96,  -128,    32}},
      { 160, { -160,   160,   160,   160,   160,  -160,  -128,    64}},
      { 192, {  -96,    96,    96,    96,    96,    96,    96,    64}},
      { 200, { -128,   128,   128,   128,    96,    96,    96,   -64}},
      { 256, { -128,   128,   128,   128,   128,   128,   128,   -64}},
      { 280, {  -96,    96,   160,    96,  -160,    96,   160,    96}},
      { 288, {  -96,    96,   160,    96,  -160,   128,   128,    96}},
      { 320, { -160,   160,   160,   160,  -160,   128,   160,   -64}},
      { 360, { -128,   192,   128,  -192,  -256,   192,  -128,   128}},
      { 384, { -192,   192,   192,  -192,   192,  -192,  -128,   128}},
      { 400, {  224,   224,   160,  -160,   224,  -160,   -64,   128}},
      { 448, {  224,   224,   224,   224,   224,   160,    64,   128}},
      { 480, {  256,   480,   160,  -160,  -480,  -160,  -128,  -128}},
      { 512, {  256,   256,   256,  -128,   256,  -128,  -128,  -128}},
      { 568, {  192,   192,   192,   192,  -256,    96,    96,    96}},
      { 576, {  192,   288,   288,   288,   288,    96,  -192,   -96}},
      { 600, {  224,   224,   224,   224,   224,  -128,  -160,  -160}},
      { 640, {  224,   224,   224,   224,   224,  -160,  -160,  -160}},
      { 672, {  224,   352,   224,   224,  -256,    96,  -128,   128}},
      { 720, {  256,   256,   256,   256,   256,  -128,  -128,  -128}},
      { 768, {  384,   384,  -384,   384,  -256,   128,   128,  -128}},
      { 832, {  128,   224,  -416,  -192,   224,  -128,  -128,   224}},
      { 896, {  448,   448,   448,   256,   128,  -128,  -128,  -128}},
      { 960, {  480,   480,   480,   320,   160,  -128,  -128,   128}},
      {1024, {  512,   512,   512,   256,  -128,  -128,  -128,  -128}},
      {1152, {  128,   384,  -576,   128,  -288,   288,  -288,   288}},
      {1280, {  256,   448,  -448,  -256,   128,  -128,  -128,  -128}},
      {1408, {  480,   480,  -480,  -352,  -128,  -128,  -128,  -128}},
      {1536, {  512,   512,  -512,  -384,  -128,  -128,   128,  -128}},
      {1664, {  352,   832,   352,  -288,  -352,  -288,  -288,  -288}},
      {1792, {  384,   608,   384,  -224,  -224,  -224,   224,   256}},
      {1920, { -384,   384,  -384,  -256,  -384,   384,   384,   160}},
      {2048, { -512,   704,  -416,  -256,  -416,  -512,  -416,  -256}},
      {3072, { -512,   512,  -512,  -512,  -512,  -512,  -512,   768}},
      {4096, { 1024,  1024,  1024,  1024,  1024,  1024,  1024,  1024}},
    },
    // clang-format on
};

/// \brief The layout of rows of `vectors` vectors, at most `kMaxRowVectors`. A size between two lines gets as many
/// vectors for each thread as the larger one.
struct ChooseRowLayout {
  constexpr RowLayout operator()(unsigned vectors, RowWork work, long long num_rows, unsigned num_sms) const {
    constexpr unsigned kWarp = 32;
    const auto ceil = [](unsigned a, unsigned b) { return (a + b - 1) / b; };
    const RowLayoutLine* line = kRowLayouts[static_cast<int>(work)];
    while (line->vectors < vectors) ++line;
    const int entry = line->threads[row_column(num_rows, num_sms)];
    const bool triggers_first = entry < 0;
    auto threads = static_cast<unsigned>(triggers_first ? -entry : entry);
    if (vectors < line->vectors) threads = ceil(ceil(vectors, ceil(line->vectors, threads)), kWarp) * kWarp;
    if (threads > kWarp) return {threads, threads, triggers_first};
    threads = 1;
    while (threads < kWarp && threads < vectors) threads *= 2;
    // Blocks of less than 4 KiB start and end more slowly than memory delivers.
    return {threads, vectors <= kWarp ? 256u : 128u, triggers_first};
  }
};

/// \brief The layout of rows of any size, of `vectors` vectors.
constexpr RowLayout generic_layout(long long vectors) {
  const auto threads = static_cast<unsigned>(vectors < 1 ? 1 : vectors < 1024 ? vectors : 1024);
  return {0, (threads + 31) / 32 * 32, false};
}

/// \brief The layout of rows of `columns` elements that are loaded by `elements`, which divide them.
template <typename Layout = ChooseRowLayout>
constexpr RowLayout layout_rows(
    long long columns, long long elements, long long element_bytes, RowWork work, long long num_rows,
    unsigned num_sms) {
  const long long vectors = columns / elements;
  if (elements > 1 && elements * element_bytes >= 8 && vectors > 0 && vectors <= kMaxRowVectors) {
    const RowLayout layout = Layout{}(static_cast<unsigned>(vectors), work, num_rows, num_sms);
    if (layout.num_blocks(num_rows) <= kMaxBlocks) return layout;
  }
  return generic_layout(vectors);
}

}  // namespace sgl
