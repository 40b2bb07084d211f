#pragma once

#include <sgl_kernel/cpu/elements.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/cpu/rows.h>
#include <sgl_kernel/impl/row_expression.h>
#include <sgl_kernel/impl/row_program_params.h>
#include <sgl_kernel/utils.h>

#include <cstdint>
#include <new>

/// \file cpu/row_program.h
/// \brief `host::RowProgram` on the CPU: a functor that says what becomes of each row.

namespace host::cpu {

namespace details {

template <unsigned kCode>
using ElementOf = sgl::details::TypeAt<
    kCode, float, fp16_t, bf16_t, fp8_e4m3_t, fp8_e5m2_t, std::int32_t, std::int64_t, std::int8_t, std::uint8_t>;

/// A part of a row.
template <int kFloats>
struct RowPart {
  std::int64_t first;
  std::int64_t length;
};

/// An operand's elements in memory.
template <typename T>
struct RowInMemory {
  const T* elements;

  template <int kFloats>
  [[gnu::always_inline]] InputChunk<T, kFloats> open(const RowPart<kFloats>& part) const {
    InputChunk<T, kFloats> chunk;
    chunk.load(elements + part.first, part.length);
    return chunk;
  }
};

/// An element for each pair of a row.
template <typename T>
struct PairsInMemory {
  const T* elements;
};

inline constexpr std::int64_t kLine = 64;  // bytes; a vector that crosses two takes twice as long

/// The floats that a row which is kept takes, whole lines.
constexpr std::int64_t in_lines(std::int64_t floats) {
  constexpr std::int64_t kFloatsOfLine = kLine / sizeof(float);
  return div_ceil(floats, kFloatsOfLine) * kFloatsOfLine;
}

}  // namespace details

/// \brief A row, as a row program sees it on the CPU: in one thread, in the version for vectors of `kFloats` floats.
/// \tparam kTypes, kPlaces of the operands, see row_program_params.h.
template <int kOperands, std::uint64_t kTypes, std::uint64_t kPlaces, int kFloats>
struct ProgramRow {
 private:
  template <int kOperand>
  using element_t = typename details::ElementOf<sgl::four_bits(kTypes, kOperand)>::type;
  static constexpr bool s_has(int operand, unsigned bits) {
    return (sgl::four_bits(kPlaces, operand) & bits) != 0;
  }
  static constexpr bool s_any(unsigned code) {
    for (int i = 0; i < kOperands; ++i) {
      if (sgl::four_bits(kTypes, i) == code && !s_has(i, sgl::kOneValue)) return true;
    }
    return false;
  }
  // Two of bf16 are the halves of a word, see `kTogether`; so all must be of 16 bits or less.
  static constexpr bool kInPairs = kFloats > 1 && s_any(sgl::kBf16) && !s_any(sgl::kFp32) && !s_any(sgl::kFp16);
  static constexpr bool kInChunks = kInPairs || (kFloats > 4 && s_any(sgl::kFp16));
  static constexpr bool kHasBytes =
      s_any(sgl::kFp8E4M3) || s_any(sgl::kFp8E5M2) || s_any(sgl::kInt8) || s_any(sgl::kUInt8);
  static constexpr std::int64_t kChunkSize = kHasBytes ? 64 : 32;

 public:
  /// \param begin, end the elements that are stored, in a map; all otherwise.
  [[gnu::always_inline]] ProgramRow(
      const sgl::RowSegment<kOperands>& segment, std::int64_t row, float* memory, std::int64_t begin, std::int64_t end)
      : m_segment(segment),
        m_columns(segment.columns),
        m_begin(begin),
        m_end(end),
        m_paired(segment.paired),
        m_outer(segment.inner == 1 ? row : row / segment.inner),  // which takes as long as some elements
        m_inner(segment.inner == 1 ? 0 : row % segment.inner),
        m_memory(memory) {}

  /// \brief Whether the row is one of those that are counted.
  [[gnu::always_inline]] bool is_there() const {
    if constexpr ((kPlaces & sgl::kIsCounted) == 0) return true;
    const auto* counts = static_cast<const std::int32_t*>(m_segment.counts);
    return counts == nullptr || m_inner < counts[m_outer];
  }
  /// \brief The number of elements.
  [[gnu::always_inline]] float size() const {
    return static_cast<float>(m_columns);
  }
  /// \brief The largest magnitude that elements of an operand's type have on both sides of zero: 448 for e4m3, 127 for
  /// int8.
  template <int kOperand>
  [[gnu::always_inline]] static float largest_of(sgl::Operand<kOperand>) {
    constexpr float kLargest = sgl::largest_of(sgl::four_bits(kTypes, kOperand));
    static_assert(kLargest > 0, "row.largest_of: the operand must be float8 or int8");
    return kLargest;
  }

  /// \brief The elements of an operand.
  template <int kOperand>
  [[gnu::always_inline]] auto operator[](sgl::Operand<kOperand>) const {
    using T = element_t<kOperand>;
    return details::RowInMemory<T>{static_cast<const T*>(m_find<kOperand>())};
  }

  /// \brief The elements of a value, computed here and not again where they are used.
  template <int kSize, typename Of>
  [[gnu::always_inline]] auto keep(const sgl::details::Grouped<kSize, Of>& of) const {
    return sgl::details::Grouped<kSize, details::RowInMemory<float>>{{m_kept(of)}};
  }
  template <typename Of>
  [[gnu::always_inline]] auto keep(const Of& of) const {
    return details::RowInMemory<float>{m_kept(of)};
  }

  /// \brief An element for each pair of the row: part `index` of `count` of an operand, for `pairs`.
  template <typename Order, int kOperand>
  [[gnu::always_inline]] auto of_pairs(Order, sgl::Operand<kOperand>, int index = 0, int = 1) const {
    using T = element_t<kOperand>;
    return details::PairsInMemory<T>{static_cast<const T*>(m_find<kOperand>()) + index * (m_paired / 2)};
  }

  /// \brief The value whose pairs of elements are `f` of those of another, a `sgl::Values<2>`. `f` gets both elements,
  /// and one of each of `others`, which are of `of_pairs`. Elements beyond the pairs stay as they are.
  template <typename Order, typename F, typename Of, typename... Others>
  [[gnu::always_inline]] auto pairs(Order, const F& f, const Of& of, const Others&... others) const {
    constexpr bool kInterleaved = __is_same(Order, sgl::Interleaved);
    float* kept = m_kept(of);
    const std::int64_t half = m_paired / 2;
    float* first = kept;
    float* second = kInterleaved ? kept + 1 : kept + half;
    constexpr std::int64_t kStep = kInterleaved ? 2 : 1;
    SGL_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < half; ++i) {
      const auto pair = f(first[kStep * i], second[kStep * i], to_float(others.elements[i])...);
      first[kStep * i] = pair.values[0];
      second[kStep * i] = pair.values[1];
    }
    return details::RowInMemory<float>{kept};
  }

  /// \brief The elements of a value that the program stores to an operand, which are computed again where they are
  /// used.
  template <int kOperand, typename Of>
  [[gnu::always_inline]] const Of& keep(sgl::Operand<kOperand>, const Of& of) const {
    return of;
  }
  /// \brief A number near the mean of the elements of an operand, to be taken away from them before they are squared:
  /// the mean of the first eighth. A short row would save little; and an eighth that lies far from the rest costs some
  /// bits, which elements of two bytes do not have.
  template <int kOperand>
  [[gnu::always_inline]] float rough_mean(sgl::Operand<kOperand> operand) const {
    const bool is_part = sizeof(element_t<kOperand>) < sizeof(float) && m_columns >= 1024;
    const auto length = is_part ? div_ceil(m_columns, 8 * kChunkSize) * kChunkSize : m_columns;
    const auto terms = sgl::details::terms([](float v) { return v; }, (*this)[operand]);
    return m_reduce<sgl::Reduction::kSum>(terms, 0, length) / static_cast<float>(length);
  }

  /// \brief One element of an operand.
  template <int kOperand>
  [[gnu::always_inline]] float at(sgl::Operand<kOperand>, std::int64_t column) const {
    return to_float(static_cast<const element_t<kOperand>*>(m_find<kOperand>())[column]);
  }

  /// \brief The value that an operand has for this row.
  template <int kOperand>
  [[gnu::always_inline]] auto value(sgl::Operand<kOperand>) const {
    const auto value = *static_cast<const element_t<kOperand>*>(m_find<kOperand>());
    if constexpr (sizeof(value) == 2) return to_float(value);
    else return value;
  }

  /// \brief A value rounded to the dtype of an operand: what another kernel would read that this one had stored.
  template <int kOperand, typename Of>
  [[gnu::always_inline]] auto round(sgl::Operand<kOperand>, const Of& of) const {
    using T = element_t<kOperand>;
    return sgl::map([](float value) { return to_float(from_float<T>(value)); }, of);
  }

  /// \brief The elements of a value by a monoid: `of(element, column)` and `merge(a, b)` are of its state, of at most
  /// 16 bytes; `identity()` changes nothing. `merge` is associative and commutative.
  template <typename M, typename Of>
  [[gnu::always_inline]] auto reduce(const M& monoid, const Of& of) const {
    auto state = sgl::details::identity_of(monoid);
    m_each_part(0, m_columns, [&]<int kSize>(const details::RowPart<kSize>& part) __attribute__((always_inline)) {
      constexpr int kTogether = kSize > 1 && kInPairs ? 2 : 1;
      const auto opened = of.open(part);
      for (std::int64_t j = 0; j < part.length / kTogether; ++j) {
        float floats[kTogether];
        opened.get(j, floats);
        for (int n = 0; n < kTogether; ++n)
          state = monoid.merge(state, monoid.of(floats[n], part.first + j * kTogether + n));
      }
    });
    return state;
  }

  /// \brief The states `next(0)`, `next(1)`, ...
  template <typename Next>
  [[gnu::always_inline]] auto list(int size, const Next& next) const {
    sgl::details::List<decltype(next(0)), sgl::kMostListed> list;
    list.size = size;
    for (int i = 0; i < size; ++i) list.states[i] = next(i);
    return list;
  }

  /// \brief The sum of `term` of the elements of values, a float or `sgl::Values`.
  template <typename F, typename... Of>
  [[gnu::always_inline]] auto sum(const F& term, const Of&... of) const {
    return m_reduce<sgl::Reduction::kSum>(sgl::details::terms(term, of...));
  }
  /// \brief The largest of `term` of the elements of values; NaN is ignored.
  template <typename F, typename... Of>
  [[gnu::always_inline]] auto max(const F& term, const Of&... of) const {
    return m_reduce<sgl::Reduction::kMax>(sgl::details::terms(term, of...));
  }

  /// \brief The sum, or the largest, of `term` of the elements of each group: a value, which is the same for all
  /// elements of a group, and which is stored once for each.
  template <int kSize, typename F, typename... Of>
  [[gnu::always_inline]] auto sum(sgl::Groups<kSize>, const F& term, const Of&... of) const {
    return m_reduce_groups<kSize, sgl::Reduction::kSum>(sgl::details::terms(term, of...));
  }
  template <int kSize, typename F, typename... Of>
  [[gnu::always_inline]] auto max(sgl::Groups<kSize>, const F& term, const Of&... of) const {
    return m_reduce_groups<kSize, sgl::Reduction::kMax>(sgl::details::terms(term, of...));
  }

  /// \brief Stores the result of the program.
  template <int... kIndex, typename... T>
  [[gnu::always_inline]] void finish(const sgl::Stores<sgl::Bound<kIndex, T>...>& stores) const {
    m_keep(stores.outputs, sgl::details::IndexListUpTo<sizeof...(T)>{}, sgl::store<>());
  }

 private:
  template <int kOperand>
  [[gnu::always_inline]] void* m_find() const {
    if constexpr (s_has(kOperand, sgl::kForAll)) return m_segment.data[kOperand];
    const void* index = m_segment.places[kOperand].index;
    std::int64_t outer = m_outer;
    if (s_has(kOperand, sgl::kIndexed | sgl::kLongIndexed) && index == nullptr) return nullptr;
    if constexpr (s_has(kOperand, sgl::kIndexed)) outer = static_cast<const std::int32_t*>(index)[outer];
    if constexpr (s_has(kOperand, sgl::kLongIndexed)) outer = static_cast<const std::int64_t*>(index)[outer];
    if (s_has(kOperand, sgl::kIndexed | sgl::kLongIndexed) && outer < 0) return nullptr;
    return m_segment.template find<kPlaces>(kOperand, outer, m_inner);
  }

  /// A value's elements in memory of this row.
  template <typename Of>
  [[gnu::always_inline]] float* m_kept(const Of& of) const {
    float* kept = m_memory;
    m_memory += details::in_lines(m_columns);
    const auto run = [&]<int kSize>(const details::RowPart<kSize>& part) __attribute__((always_inline)) {
      constexpr int kTogether = kSize > 1 && kInPairs ? 2 : 1;
      const auto opened = of.open(part);
      SGL_INDEPENDENT_LOOP
      for (std::int64_t j = 0; j < part.length / kTogether; ++j) {
        float floats[kTogether];
        opened.get(j, floats);
        for (int n = 0; n < kTogether; ++n) kept[part.first + j * kTogether + n] = floats[n];
      }
    };
    m_each_part(0, m_columns, run);
    return kept;
  }

  /// Calls `body(part)` for parts that together are elements [begin, end).
  template <typename Body>
  [[gnu::always_inline]] void m_each_part(std::int64_t begin, std::int64_t end, const Body& body) const {
    if constexpr (kInChunks) {
      for (; begin + kChunkSize <= end; begin += kChunkSize) body(details::RowPart<kFloats>{begin, kChunkSize});
    }
    if (begin < end) body(details::RowPart<1>{begin, end - begin});
  }

  template <int kSize, sgl::Reduction kReduction, typename Terms>
  [[gnu::always_inline]] auto m_reduce_groups(const Terms& terms) const {
    float* kept = m_memory;
    m_memory += details::in_lines(m_columns);
    for (std::int64_t first = 0; first < m_columns; first += kSize) {
      const float value = m_reduce<kReduction>(terms, first, first + kSize);
      for (std::int64_t i = first; i < first + kSize; ++i) kept[i] = value;
    }
    return sgl::details::Grouped<kSize, details::RowInMemory<float>>{{kept}};
  }

  template <sgl::Reduction kReduction, typename Terms>
  [[gnu::always_inline]] auto m_reduce(const Terms& terms) const {
    return m_reduce<kReduction>(terms, 0, m_columns);
  }
  template <sgl::Reduction kReduction, typename Terms>
  [[gnu::always_inline]] auto m_reduce(const Terms& terms, std::int64_t begin, std::int64_t end) const {
    constexpr bool kMax = kReduction == sgl::Reduction::kMax;
    auto reduced = Terms::template identity<kMax>();
    const auto visit = [&]<int kSize>(Vectors<kSize>, std::int64_t first, std::int64_t length, const auto& add)
                           __attribute__((always_inline)) {
                             constexpr int kTogether = kSize > 1 && kInPairs ? 2 : 1;
                             const auto opened = terms.open(details::RowPart<kSize>{begin + first, length});
                             SGL_ROLLED_LOOP
                             for (std::int64_t j = 0; j < length / kTogether; ++j) {
                               decltype(reduced) found[kTogether];
                               opened.get(j, found);
                               for (int n = 0; n < kTogether; ++n) add(n * (length / kTogether) + j, found[n]);
                             }
                           };
    reduce_over<kReduction, kInPairs ? 2 : 1>(Vectors<kFloats>{}, end - begin, reduced, visit);
    return Terms::result(reduced);
  }

  /// Leaves out what is stored to a row whose index is negative.
  template <typename Outputs, std::size_t kFirst, std::size_t... kRest, typename... Kept>
  [[gnu::always_inline]] void m_keep(
      const Outputs& outputs, sgl::details::IndexList<kFirst, kRest...>, const sgl::Stores<Kept...>& kept) const {
    m_keep_one(sgl::details::get<kFirst>(outputs), outputs, sgl::details::IndexList<kRest...>{}, kept);
  }
  template <typename Outputs, typename... Kept>
  [[gnu::always_inline]] void m_keep(
      const Outputs&, sgl::details::IndexList<>, const sgl::Stores<Kept...>& kept) const {
    m_finish(kept.outputs, sgl::details::IndexListUpTo<sizeof...(Kept)>{});
  }
  template <int kOperand, typename T, typename Outputs, std::size_t... kRest, typename... Kept>
  [[gnu::always_inline]] void m_keep_one(
      const sgl::Bound<kOperand, T>& output, const Outputs& outputs, sgl::details::IndexList<kRest...> rest,
      const sgl::Stores<Kept...>& kept) const {
    if constexpr (s_has(kOperand, sgl::kIndexed | sgl::kLongIndexed)) {
      if (m_find<kOperand>() == nullptr) return m_keep(outputs, rest, kept);
    }
    m_keep(outputs, rest, sgl::details::appended(kept, output));
  }

  /// A row that is stored as it is, and nothing else: the same bits.
  template <int kOperand>
  [[gnu::always_inline]] void m_finish(
      const sgl::details::Pack<sgl::Bound<kOperand, details::RowInMemory<element_t<kOperand>>>>& outputs,
      sgl::details::IndexList<0>) const {
    using T = element_t<kOperand>;
    constexpr std::int64_t kBytes = sizeof(T), kStreamed = 8 << 20;  // with what is read, most of a last cache
    auto* to = static_cast<T*>(m_find<kOperand>()) + m_begin;
    const auto* from = sgl::details::get<0>(outputs).value.elements + m_begin;
    const auto bytes = (m_end - m_begin) * kBytes;
    const bool is_of_lines = ((reinterpret_cast<std::uintptr_t>(to) | static_cast<std::uintptr_t>(bytes)) & 63) == 0;
    if (is_of_lines && m_segment.num_rows * m_columns * kBytes >= kStreamed) return stream<kFloats>(to, from, bytes);
    __builtin_memmove(to, from, static_cast<std::size_t>(bytes));
  }
  template <typename Outputs, std::size_t... I>
  [[gnu::always_inline]] void m_finish(const Outputs& outputs, sgl::details::IndexList<I...>) const {
    (m_store_value(sgl::details::get<I>(outputs)), ...);
    const auto run = [&]<int kSize>(const details::RowPart<kSize>& part) __attribute__((always_inline)) {
      constexpr int kTogether = kSize > 1 && kInPairs ? 2 : 1;
      const auto opened = sgl::details::pack(m_opened(sgl::details::get<I>(outputs), part)...);
      auto chunks = sgl::details::pack(m_begun(sgl::details::get<I>(outputs), part)...);
      SGL_INDEPENDENT_LOOP
      for (std::int64_t j = 0; j < part.length / kTogether; ++j) {
        float floats[sizeof...(I)][kTogether];
        (sgl::details::get<I>(opened).get(j, floats[I]), ...);
        (sgl::details::get<I>(chunks).set(j, floats[I]), ...);
      }
      (sgl::details::get<I>(chunks).store(part.length), ...);
    };
    m_each_part(m_begin, m_end, run);
  }

  struct Nothing {
    template <int N>
    [[gnu::always_inline]] void get(std::int64_t, float (&)[N]) const {}
    template <int N>
    [[gnu::always_inline]] void set(std::int64_t, const float (&)[N]) const {}
    [[gnu::always_inline]] void store(std::int64_t) const {}
  };

  template <int kOperand, typename T, int kSize>
  [[gnu::always_inline]] auto m_opened(
      const sgl::Bound<kOperand, T>& output, const details::RowPart<kSize>& part) const {
    if constexpr (sgl::details::kIsNumber<T> || sgl::details::kIsGrouped<T>) return Nothing{};
    else return output.value.open(part);
  }

  template <int kOperand, typename T, int kSize>
  [[gnu::always_inline]] auto m_begun(const sgl::Bound<kOperand, T>&, const details::RowPart<kSize>& part) const {
    if constexpr (sgl::details::kIsNumber<T> || sgl::details::kIsGrouped<T>) {
      return Nothing{};
    } else {
      using U = element_t<kOperand>;
      OutputChunk<U, kSize> chunk;
      chunk.begin(static_cast<U*>(m_find<kOperand>()) + part.first);
      return chunk;
    }
  }

  template <typename U, typename T>
  [[gnu::always_inline]] static U s_number(T value) {
    if constexpr (sizeof(U) == 2) return from_float<U>(value);
    else return static_cast<U>(value);
  }

  template <int kOperand, typename T>
  [[gnu::always_inline]] void m_store_value(const sgl::Bound<kOperand, T>& output) const {
    if constexpr (sgl::details::kIsListed<T>) {
      using U = element_t<kOperand>;
      const auto& [f, list] = output.value;
      auto* place = static_cast<void*>(m_find<kOperand>());
      const auto distance = m_segment.places[kOperand].group_stride;
      for (int i = 0; i < list.size; ++i)
        *static_cast<U*>(pointer::offset(place, i * distance)) = s_number<U>(f(list.states[i]));
    } else if constexpr (sgl::details::kIsNumber<T>) {
      *static_cast<element_t<kOperand>*>(m_find<kOperand>()) = s_number<element_t<kOperand>>(output.value);
    } else if constexpr (sgl::details::kIsGrouped<T>) {
      using U = element_t<kOperand>;
      void* begin = m_find<kOperand>();
      const auto distance = m_segment.places[kOperand].group_stride;
      for (std::int64_t i = 0, group = 0; i < m_columns; i += T::kGroupSize, ++group) {
        float value[1];
        output.value.open(details::RowPart<1>{i, 1}).get(0, value);
        void* place = s_has(kOperand, sgl::kOneValue) ? pointer::offset(begin, group / 4 * distance, group % 4)
                                                      : pointer::offset(begin, group * distance);
        *static_cast<U*>(place) = from_float<U>(value[0]);
      }
    }
  }

  const sgl::RowSegment<kOperands>& m_segment;
  std::int64_t m_columns, m_begin, m_end, m_paired;
  std::int64_t m_outer, m_inner;
  mutable float* m_memory;  // for what is kept
};

namespace details {

/// A row and what a program has found of it, to be stored later; made in place.
template <typename Row, typename Stores>
struct Found {
  union {
    Row row;
  };
  union {
    Stores stores;
  };

  Found() {}
};

/// The rows of segment number `kNumber`.
///
/// Short rows are reduced several at a time, before anything is stored: from the first term of a row to what is made of
/// its sum the processor waits most of the time. A loop, not four copies, which would take as much longer to compile.
template <
    int kNumber, unsigned kForm, std::uint64_t kTypes, std::uint64_t kPlaces, typename F, int kOperands, int kSegments>
void run_segment(
    const sgl::RowSegment<kOperands>& segment, const sgl::RowProgramParams<kOperands, kSegments>& params, const F& f) {
  constexpr std::int64_t kShort = 2048, kTogether = 4;
  const auto program = [&](const auto& row)
                           __attribute__((always_inline)) { return sgl::details::run_segment<kNumber>(f, row); };
  if constexpr ((kForm & sgl::kIsMap) != 0) {
    for_each_piece(
        segment.num_rows, segment.columns,
        [&]<int kFloats>(Vectors<kFloats>, std::int64_t row, std::int64_t first, std::int64_t count)
            __attribute__((always_inline)) {
              const ProgramRow<kOperands, kTypes, kPlaces, kFloats> piece(segment, row, nullptr, first, first + count);
              if (piece.is_there()) piece.finish(program(piece));
            });
  } else {
    for_rows(
        segment.num_rows, segment.columns,
        [&]<int kFloats>(Vectors<kFloats>, std::int64_t begin, std::int64_t end) __attribute__((always_inline)) {
          float* memory = nullptr;
          if constexpr ((kForm & sgl::kKeeps) != 0)
            memory = static_cast<float*>(::operator new(
                static_cast<std::size_t>(params.kept * in_lines(segment.columns)) * sizeof(float),
                std::align_val_t{kLine}));
          using Row = ProgramRow<kOperands, kTypes, kPlaces, kFloats>;
          auto first = begin;
          if constexpr ((kForm & sgl::kKeeps) == 0 && (kPlaces & sgl::kIsCounted) == 0) {
            for (; segment.columns <= kShort && first + kTogether <= end; first += kTogether) {
              Found<Row, decltype(program(Row(segment, 0, nullptr, 0, 0)))> found[kTogether];
              SGL_ROLLED_LOOP
              for (std::int64_t i = 0; i < kTogether; ++i) {
                auto& one = found[i];
                ::new (&one.row) Row(segment, first + i, memory, 0, segment.columns);
                ::new (&one.stores) auto(program(one.row));
              }
              SGL_ROLLED_LOOP
              for (std::int64_t i = 0; i < kTogether; ++i) {
                const auto row = found[i].row;  // local: what is stored cannot change them
                const auto stores = found[i].stores;
                row.finish(stores);
              }
            }
          }
          for (; first < end; ++first) {
            const Row row(segment, first, memory, 0, segment.columns);
            if (row.is_there()) row.finish(program(row));
          }
          end_streams();
          ::operator delete(memory, std::align_val_t{kLine});
        });
  }
}

}  // namespace details

/// \brief Rows by a program; all is written when it returns. An output may be an input.
/// \tparam kForms of the segments, see row_program_params.h.
template <typename F, int kOperands, int kSegments, std::uint64_t kTypes, std::uint64_t kPlaces, std::uint64_t kForms>
void row_program(const sgl::RowProgramParams<kOperands, kSegments>& params, const F& f) {
  using Row = ProgramRow<kOperands, kTypes, kPlaces, 1>;
  constexpr std::size_t kAlike = sgl::details::alike_of<F>();
  if constexpr (requires(const Row& row) { f(row); }) {
    for (const auto& segment : params.segments)
      details::run_segment<0, kForms & 3, kTypes, kPlaces>(segment, params, f);
  } else {
    [&]<std::size_t... I>(sgl::details::IndexList<I...>) {
      (details::run_segment<(I < kAlike ? 0 : static_cast<int>(I)), (kForms >> 2 * I & 3), kTypes, kPlaces>(
           params.segments[I], params, f),
       ...);
    }(sgl::details::IndexListUpTo<kSegments>{});
  }
}

}  // namespace host::cpu
