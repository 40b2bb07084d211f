#pragma once

#include <sgl_kernel/functor.h>

/// \file impl/row_expression.h
/// \brief What a row program is written in: operands, values of rows, and what is stored. Read by every compiler.
///
/// A value is an expression, which is evaluated where it is needed: in a reduction, and at the end for each output. Its
/// `open(part)` prepares a part of the row for one thread; the result's `get(j, floats)` sets `floats` to elements N *
/// j to N * j + N - 1 of the part. A part is some vectors of a thread on a device, and a chunk of a row on the CPU.

namespace sgl {

namespace details {

using size_t = decltype(sizeof(0));

template <size_t... kIndex>
struct IndexList {};
template <size_t kCount, size_t... kIndex>
struct IndexListMaker : IndexListMaker<kCount - 1, kCount - 1, kIndex...> {};
template <size_t... kIndex>
struct IndexListMaker<0, kIndex...> {
  using type = IndexList<kIndex...>;
};
template <size_t kCount>
using IndexListUpTo = typename IndexListMaker<kCount>::type;  // NVRTC has no builtin for it

/// Values of several types, by their index.
template <size_t kIndex, typename T>
struct Leaf {
  T value;
};
template <typename Indices, typename... T>
struct PackOf;
template <size_t... kIndex, typename... T>
struct PackOf<IndexList<kIndex...>, T...> : Leaf<kIndex, T>... {};
template <typename... T>
using Pack = PackOf<IndexListUpTo<sizeof...(T)>, T...>;

template <size_t kIndex, typename T>
SGL_HD const T& get(const Leaf<kIndex, T>& leaf) {
  return leaf.value;
}
template <size_t kIndex, typename T>
SGL_HD T& get(Leaf<kIndex, T>& leaf) {
  return leaf.value;
}

}  // namespace details

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

/// \brief A set of rows by its number. A functor whose call operator takes one after the row has a program for each.
template <int kNumber>
struct Segment {};

/// \brief The most floats that a row is reduced to at once; a monoid's state is not larger.
inline constexpr unsigned kMostTerms = 4;

/// \brief The most states of a list, see `row.list`.
inline constexpr int kMostListed = 32;

/// \brief How the elements of a row make pairs: i with i + half, or 2i with 2i + 1.
struct Neox {};
struct Interleaved {};
inline constexpr Neox neox{};
inline constexpr Interleaved interleaved{};

/// \brief Groups of `kSize` neighbours of a row, a power of two.
template <int kSize>
struct Groups {
  static_assert(kSize > 0 && (kSize & (kSize - 1)) == 0, "sgl::groups_of: the size of a group is a power of two");
};
template <int kSize>
inline constexpr Groups<kSize> groups_of{};

/// \brief Something bound to operand number `kIndex`: the value that is stored there, or the rows that are passed.
template <int kIndex, typename T>
struct Bound {
  T value;
};

/// \brief An operand of a row program by its number, see `SGL_OPERANDS`. `row[x]` are its elements in the row, `x =
/// ...` what is stored there, or on the host the rows that are passed.
template <int kIndex>
struct Operand {
  enum : bool { kIsOperand = true };

  template <typename T>
  SGL_HD constexpr Bound<kIndex, T> operator=(const T& value) const {
    static_assert(!requires { T::kIsOperand; }, "an operand is not a value: write out = row[x] to store its elements");
    return {value};
  }
};

/// \brief What a program stores: for each output an expression, or for an operand with one value for each row a number.
template <typename... Output>
struct Stores {
  details::Pack<Output...> outputs;
};

/// \brief The result of a row program: `return sgl::store(out = y, residual = sum);`. All expressions are of the
/// operands as they were before; an output may be an input.
template <int... kIndex, typename... T>
SGL_HD constexpr Stores<Bound<kIndex, T>...> store(const Bound<kIndex, T>&... outputs) {
  static_assert((0 + ... + (1 << kIndex)) == (0 | ... | (1 << kIndex)), "sgl::store: an operand is stored once");
  return {{{outputs}...}};
}

namespace details {

template <typename... T>
SGL_HD Pack<T...> pack(const T&... values) {
  return {{values}...};
}

template <typename... Kept, typename Output, size_t... I>
SGL_HD Stores<Kept..., Output> appended(const Stores<Kept...>& stores, const Output& output, IndexList<I...>) {
  return {{{get<I>(stores.outputs)}..., {output}}};
}
template <typename... Kept, typename Output>
SGL_HD Stores<Kept..., Output> appended(const Stores<Kept...>& stores, const Output& output) {
  return appended(stores, output, IndexListUpTo<sizeof...(Kept)>{});
}

/// f of each element of some expressions, or of opened ones. `Convert` turns the result of `f` into that of `get`.
template <typename Convert, typename F, typename Indices, typename... Of>
struct MappedBy;
template <typename Convert, typename F, size_t... I, typename... Of>
struct MappedBy<Convert, F, IndexList<I...>, Of...> : Leaf<I, Of>... {
  F f;

  template <typename Part>
  SGL_HD auto open(const Part& part) const {
    return MappedBy<Convert, const F&, IndexList<I...>, decltype(Leaf<I, Of>::value.open(part))...>{
        {Leaf<I, Of>::value.open(part)}..., f};
  }
  template <typename Result, int N>
  SGL_HD void get(long long j, Result (&results)[N]) const {
    float values[sizeof...(Of)][N];
    (Leaf<I, Of>::value.get(j, values[I]), ...);
    for (int n = 0; n < N; ++n) results[n] = Convert::of(f(values[I][n]...));
  }
};
template <typename Convert, typename F, typename... Of>
using MappedTo = MappedBy<Convert, F, IndexListUpTo<sizeof...(Of)>, Of...>;

struct AsFloat {
  SGL_HD static float of(float value) {
    return value;
  }
};
template <typename F, typename... Of>
using Mapped = MappedTo<AsFloat, F, Of...>;

struct AsTerms {
  SGL_HD static Values<1> of(float value) {
    return {{value}};
  }
  template <int N>
  SGL_HD static Values<N> of(const Values<N>& values) {
    return values;
  }
};
struct AsPair {
  SGL_HD static void of(const Values<2>&) {}
};

template <typename>
SGL_HD float a_float() noexcept;

// Concepts, as NVRTC puts each constant into each cubin, under a name that tells all of its type.

/// Whether `f` of a float of each value is what `Convert` takes.
template <typename Convert, typename F, typename... Of>
concept kTakes = requires(const F& f) { Convert::of(f(a_float<Of>()...)); };

/// A value that is the same for all elements of a group.
template <int kSize, typename Of>
struct Grouped : Of {
  enum : int { kGroupSize = kSize };
};
template <typename T>
concept kIsGrouped = requires { T::kGroupSize; };

/// States that a row is reduced to one after the other. On a device each thread holds some of them.
template <typename State, int kHeld>
struct List {
  enum : bool { kIsList = true };
  State states[kHeld];
  int size;
};
template <typename T>
concept kIsList = requires { T::kIsList; };

/// A number of each state of a list: so many values for each row.
template <typename F, typename Of>
struct Listed {
  enum : bool { kIsListed = true };
  F f;
  Of list;
};
template <typename T>
concept kIsListed = requires { T::kIsListed; };

template <typename T>
struct Number;
template <>
struct Number<float> {};
template <>
struct Number<int> {};
template <>
struct Number<long> {};
template <>
struct Number<long long> {};

/// Whether a result is a value for each row.
template <typename T>
concept kIsNumber = kIsListed<T> || requires { sizeof(Number<T>); };

/// The terms of a reduction.
template <typename F, typename... Of>
struct Terms : MappedTo<AsTerms, F, Of...> {
  static_assert(sizeof...(Of) > 0, "a reduction needs a value after the function");
  static_assert(
      kTakes<AsTerms, F, Of...>,
      "row.sum, row.max: the function takes a float of each value after it, and returns a float or sgl::Values");
  using term_t = decltype(declare<const F&>()(a_float<Of>()...));
  using reduced_t = decltype(AsTerms::of(declare<term_t>()));
  static_assert(reduced_t::kCount <= kMostTerms, "row.sum, row.max: at most four values are reduced at once");

  template <bool kMax>
  SGL_HD static reduced_t identity() {
    reduced_t reduced;
    for (float& value : reduced.values) value = kIdentity<kMax>;
    return reduced;
  }
  /// What the author's function returns one term as.
  SGL_HD static term_t result(const reduced_t& reduced) {
    if constexpr (requires { term_t{reduced}; }) return reduced;
    else return reduced.values[0];
  }
};

}  // namespace details

/// \brief The value whose elements are `f` of the elements of others: `sgl::map([](float x, float w) { ... }, x, w)`.
/// Of values of groups it is a value of groups.
template <typename F, typename First, typename... Of>
SGL_HD auto map(const F& f, const First& first, const Of&... of) {
  static_assert(
      details::kTakes<details::AsFloat, F, First, Of...>,
      "sgl::map: the function takes a float of each value after it, and returns a float");
  using Result = details::Mapped<F, First, Of...>;
  if constexpr (requires { requires((First::kGroupSize == Of::kGroupSize) && ... && (First::kGroupSize > 0)); })
    return details::Grouped<First::kGroupSize, Result>{{{first}, {of}..., f}};
  else return Result{{first}, {of}..., f};
}

/// \brief The numbers `f` of the states of a list.
template <typename F, details::kIsList Of>
SGL_HD details::Listed<F, Of> map(const F& f, const Of& list) {
  return {f, list};
}

namespace details {

template <typename F, typename... Of>
SGL_HD Terms<F, Of...> terms(const F& f, const Of&... of) {
  return {{{of}..., f}};
}

/// The state that a monoid begins with.
template <typename M>
SGL_HD auto identity_of(const M& monoid) {
  using State = decltype(monoid.identity());
  static_assert(sizeof(State) <= kMostTerms * sizeof(float), "row.reduce: a state has at most 16 bytes");
  static_assert(sizeof(State) % 4 == 0, "row.reduce: a state is of whole words of 32 bits");
  return monoid.identity();
}

/// Whether a functor has a program for each segment.
template <typename F, typename Row>
inline constexpr bool kHasSegments = requires(const F& f, const Row& row) { f(row, Segment<0>{}); };

/// How many of the first segments have the program of the first.
template <typename F>
SGL_UNCALLED constexpr int alike_of() {
  if constexpr (requires { F::kAlike; }) return F::kAlike;
  else return 1;
}

/// What the program of a segment stores.
template <int kNumber, typename F, typename Row>
SGL_HD auto run_segment(const F& f, const Row& row) {
  constexpr int kProgram = kNumber < alike_of<F>() ? 0 : kNumber;
  if constexpr (requires { f(row, Segment<kProgram>{}); }) return f(row, Segment<kProgram>{});
  else return f(row);
}

}  // namespace details

}  // namespace sgl
