#pragma once

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_op.h>
#include <sgl_kernel/impl/row_reduce_params.h>
#include <sgl_kernel/impl/traits.h>
#include <sgl_kernel/utils.h>

#include <cstddef>

/// \file impl/row_reduce_functor.h
/// \brief Does a functor have the members that a row reduction calls? Asked where the host part is compiled: the
/// kernels and the loop, which call them, are compiled when they are first needed.

namespace host::details {

/// Terms as `finish` gets them, reduced.
float reduced(const sgl::Values<1>&);
template <int N>
sgl::Values<N> reduced(const sgl::Values<N>&);

/// The result of the last pass, where `First` is that of the first.
template <typename F, typename First, typename Kept, bool kHasSecondPass = sgl::details::kHasSecondPass<F>>
struct LastPass {
  static constexpr int kTerms = 0;
  using Statistic = First;
};
template <typename F, typename First, std::size_t... K>
struct LastPass<F, First, Indices<K...>, true> {
  static_assert(
      requires(const F& f, First first) { as_values(f.second_term(first, kAny<K>...)); },
      "RowReduce: second_term must be float second_term(first, float, ...) const: what finish returned, and what term "
      "gets");
  using Terms = decltype(as_values(declare<const F&>().second_term(declare<First>(), kAny<K>...)));
  static constexpr int kTerms = Terms::kCount;
  using Sum = decltype(reduced(declare<Terms>()));
  static_assert(
      requires(const F& f, First first, Sum sum) { f.second_finish(first, sum, 0.0f); },
      "RowReduce: a functor with second_term needs float second_finish(first, float sum, float size) const, with what "
      "finish returned");
  using Statistic = decltype(declare<const F&>().second_finish(declare<First>(), declare<Sum>(), 0.0f));
};

/// Says what is wrong first with the functor of a row reduction.
/// \tparam Kept the indices of what `term` gets, `Mapped` those and the shared rows'.
template <typename F, int kReturned, typename Inputs, typename Kept, typename Mapped>
struct RowReduceFunctor;
template <typename F, int kReturned, std::size_t... I, std::size_t... K, std::size_t... M>
struct RowReduceFunctor<F, kReturned, Indices<I...>, Indices<K...>, Indices<M...>> {
  static_assert(
      !sgl::details::kCombines<F> || requires(const F& f) { static_cast<float>(f.combine(kAny<I>...)); },
      "RowReduce: combine must be float combine(float, ...) const, with a float for each input");
  static_assert(
      requires(const F& f) { as_values(f.term(kAny<K>...)); },
      "RowReduce: the functor needs float term(float, ...) const, with a float for each input, or the one of combine");
  using Terms = decltype(as_values(declare<const F&>().term(kAny<K>...)));
  using Sum = decltype(reduced(declare<Terms>()));
  static_assert(
      requires(const F& f, Sum sum) { f.finish(sum, 0.0f); },
      "RowReduce: the functor needs float finish(float sum, float size) const; the sum is sgl::Values<N> if term is");
  using First = decltype(declare<const F&>().finish(declare<Sum>(), 0.0f));
  static_assert(
      sgl::details::kHasSecondPass<F> || !requires { &F::second_finish; },
      "RowReduce: a functor with second_finish needs second_term, one function and no template");
  static_assert(
      sgl::details::kHasSecondPass<F> || !sgl::details::kEstimates<F>,
      "RowReduce: kFirstEstimates needs a second pass, second_term and second_finish, which corrects the estimate");
  using Last = LastPass<F, First, Indices<K...>>;
  static_assert(
      Terms::kCount + Last::kTerms <= sgl::kMostTerms,
      "RowReduce: term and second_term may have four values together: the kernels have memory for no more");
  using Statistic = typename Last::Statistic;
  using Stored = traits::remove_cvref<Statistic>;
  static_assert(
      requires(Stored& to, const Stored& from) {
        Stored{};
        to = from;
      },
      "RowReduce: what finish, or second_finish, returns must be a value that can be assigned: the CPU's loop keeps an "
      "array of them");
  static_assert(
      sgl::details::kWritesRows<F> || !requires(const F& f, Statistic row) { f.write_row(1ll, row); },
      "RowReduce: write_row must be one function, and no template");
  static_assert(
      sgl::details::kCombines<F> || !requires(const F& f) { f.combine(kAny<I>...); },
      "RowReduce: combine must be one function, and no template");
  static_assert(
      !sgl::details::kWritesRows<F> || requires(const F& f, Statistic row) { f.write_row(1ll, row); },
      "RowReduce: write_row must be void write_row(long long row, statistic) const, with what the row was reduced to");
  static_assert(
      requires(const F& f, Statistic row) {
        { as_values(f(row, kAny<M>...)) } -> traits::same_as<sgl::Values<kReturned>>;
      },
      "RowReduce: the functor needs float operator()(float factor, float, ...) const: what finish returned, a float "
      "for each input, or the one of combine, and one for each shared row; sgl::Values<N> if it returns several "
      "outputs");
  static constexpr bool kIsChecked = true;
};

}  // namespace host::details
