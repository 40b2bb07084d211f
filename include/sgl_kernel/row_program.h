#pragma once

/// \file row_program.h
/// \brief Row programs: an op that is a functor of a row.
///
/// \code
///   // norm.h: the functor, read by every compiler
///   struct RMSNorm {
///     SGL_OPERANDS(x, weight, out)
///     float eps;
///     SGL_FIELDS(eps)
///
///     template <typename Row>
///     SGL_HD auto operator()(const Row& row) const {
///       const auto values = row[x];
///       const float mean = row.sum([](float v) { return v * v; }, values) / row.size();
///       const float factor = sgl::rsqrt(mean + eps);
///       return sgl::store(out = sgl::map([=](float v, float w) { return v * factor * w; }, values, row[weight]));
///     }
///   };
///
///   // norm.cpp, the host part
///   host::RowProgram<norms::RMSNorm> rms_norm_rows{"norm.h"};
///
///   void rms_norm(host::TensorView x, host::TensorView weight, host::TensorView out, double eps) {
///     using F = norms::RMSNorm;
///     rms_norm_rows({float(eps)}, F::x = host::rows("x", x), F::weight = host::shared_row("weight", weight),
///                   F::out = host::rows("out", out));
///   }
/// \endcode

#include <sgl_kernel/functor.h>
#include <sgl_kernel/impl/row_expression.h>
#include <sgl_kernel/impl/row_program_params.h>

/// \brief Inside a functor: the names of its operands, up to 15.
#define SGL_OPERANDS(...)                                \
  enum : int { SGL_EACH_NUMBER(__VA_ARGS__) kOperands }; \
  SGL_EACH_OPERAND(__VA_ARGS__)

#define SGL_NUMBER(NAME) sgl_number_of_##NAME,
// nvcc has no static members on a device, unless their class is a template.
#if defined(__NVCC__) && !defined(__CUDACC_RTC__)
#define SGL_OPERAND(NAME) [[no_unique_address]] ::sgl::Operand<sgl_number_of_##NAME> NAME{};
#else
#define SGL_OPERAND(NAME) static constexpr ::sgl::Operand<sgl_number_of_##NAME> NAME{};
#endif
#define SGL_EACH_NUMBER(...) SGL_SCAN_16(SGL_NUMBERS_1(__VA_ARGS__))
#define SGL_NUMBERS_1(NAME, ...) SGL_NUMBER(NAME) __VA_OPT__(SGL_NUMBERS_AGAIN SGL_PARENTHESES(__VA_ARGS__))
#define SGL_NUMBERS_AGAIN() SGL_NUMBERS_1
#define SGL_EACH_OPERAND(...) SGL_SCAN_16(SGL_OPERANDS_1(__VA_ARGS__))
#define SGL_OPERANDS_1(NAME, ...) SGL_OPERAND(NAME) __VA_OPT__(SGL_OPERANDS_AGAIN SGL_PARENTHESES(__VA_ARGS__))
#define SGL_OPERANDS_AGAIN() SGL_OPERANDS_1
// A scan takes one name.
#define SGL_SCAN_4(...) SGL_SCAN(SGL_SCAN(SGL_SCAN(SGL_SCAN(__VA_ARGS__))))
#define SGL_SCAN_16(...) SGL_SCAN_4(SGL_SCAN_4(SGL_SCAN_4(SGL_SCAN_4(__VA_ARGS__))))

#if defined(__CUDACC__)

#include <sgl_kernel/row_program.cuh>

#else

#include <sgl_kernel/deferred.h>
#include <sgl_kernel/dtype.h>
#include <sgl_kernel/impl/row_layout.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/rows.h>
#include <sgl_kernel/variant.h>

#include <cstddef>
#include <cstdint>

namespace host {

namespace details {

/// What a program asks of its operands, by one bit for each.
struct Roles {
  unsigned reads = 0;
  unsigned reads_value = 0;
  unsigned writes = 0;
  unsigned writes_value = 0;
  unsigned writes_groups = 0;
  unsigned stores_early = 0;  ///< `row.keep(operand, value)`
  unsigned reads_late = 0;    ///< those that are read after it
  unsigned uses_dtype = 0;
  unsigned pairs = 0;        ///< has one element for each pair, or several
  unsigned writes_list = 0;  ///< those of `writes_value` that have `list_size` values for each row
  unsigned lacks = 0;        ///< stored by the other segments that have this program
  int reductions = 0;
  int sums = 0;  ///< those whose bits depend on the order of the elements: a largest value is none
  int kept = 0;
  int list_size = 0;  ///< the states of the program's longest list
  int parts_of_pairs = 1;
  int group_size = 0;
  bool is_neox = false;
  bool uses_size = false;

  unsigned all_writes() const {
    return writes | writes_value | writes_groups;
  }
  unsigned asks() const {
    return reads | reads_value | pairs | all_writes();
  }
};

/// An operand's elements, of no row; or the values of its groups.
struct NoRow {};
template <int kSize>
using NoGroups = sgl::details::Grouped<kSize, NoRow>;

/// A row that is none: it notes what a program asks for. Each call asks; with all of it inlined the answer is constant.
struct RoleRow {
 public:
  mutable Roles roles;

  /// What the program of a segment asks for.
  template <int kNumber, typename F>
  [[gnu::always_inline]] static Roles roles_of(const F& f) {
    const RoleRow row;
    const auto stores = sgl::details::run_segment<kNumber>(f, row);
    static_assert(requires { row.finish(stores); }, "a row program returns sgl::store(operand = value, ...)");
    row.finish(stores);
    return row.roles;
  }

  [[gnu::always_inline]] float size() const {
    roles.uses_size = true;
    return 1;
  }
  template <int kOperand>
  [[gnu::always_inline]] float largest_of(sgl::Operand<kOperand>) const {
    roles.uses_dtype |= 1u << kOperand;
    return 1;
  }
  template <int kOperand>
  [[gnu::always_inline]] NoRow operator[](sgl::Operand<kOperand>) const {
    m_read(roles.reads, kOperand);
    return {};
  }
  template <int kOperand>
  [[gnu::always_inline]] float at(sgl::Operand<kOperand> operand, std::int64_t) const {
    (*this)[operand];
    return 0;
  }
  template <int kOperand>
  [[gnu::always_inline]] float value(sgl::Operand<kOperand>) const {
    m_read(roles.reads_value, kOperand);
    return 1;
  }
  template <int kSize, typename Of>
  [[gnu::always_inline]] NoGroups<kSize> keep(const sgl::details::Grouped<kSize, Of>&) const {
    ++roles.kept;
    return {};
  }
  template <typename Of>
  [[gnu::always_inline]] NoRow keep(const Of&) const {
    ++roles.kept;
    return {};
  }
  template <int kOperand, typename Of>
  [[gnu::always_inline]] NoRow keep(sgl::Operand<kOperand>, const Of&) const {
    roles.stores_early |= 1u << kOperand;
    return {};
  }
  template <int kOperand>
  [[gnu::always_inline]] float rough_mean(sgl::Operand<kOperand> operand) const {
    (*this)[operand];
    ++roles.reductions;
    ++roles.sums;
    return 0;
  }
  template <int kOperand, typename Of>
  [[gnu::always_inline]] NoRow round(sgl::Operand<kOperand>, const Of&) const {
    roles.uses_dtype |= 1u << kOperand;
    return {};
  }
  template <typename M, typename Of>
  [[gnu::always_inline]] auto reduce(const M& monoid, const Of&) const {
    ++roles.reductions;
    ++roles.sums;
    return sgl::details::identity_of(monoid);
  }
  template <typename Next>
  [[gnu::always_inline]] auto list(int size, const Next& next) const {
    ++roles.reductions;
    if (roles.list_size < size) roles.list_size = size;
    return sgl::details::List<decltype(next(0)), 1>{{next(0)}, size};
  }
  template <typename Order, int kOperand>
  [[gnu::always_inline]] NoRow of_pairs(Order, sgl::Operand<kOperand>, int = 0, int count = 1) const {
    m_read(roles.pairs, kOperand);
    roles.parts_of_pairs = count;
    return {};
  }
  template <typename Order, typename F, typename Of, typename... Others>
  [[gnu::always_inline]] NoRow pairs(Order, const F&, const Of& of, const Others&...) const {
    static_assert(
        sgl::details::kTakes<sgl::details::AsPair, F, float, float, Others...>,
        "row.pairs: the function takes two floats, and one of each value after the first, and returns sgl::Values<2>");
    roles.is_neox = __is_same(Order, sgl::Neox);
    return keep(of);
  }
  template <typename F, typename... Of>
  [[gnu::always_inline]] auto sum(const F&, const Of&...) const {
    ++roles.sums;
    return m_reduced<sgl::details::Terms<F, Of...>>();
  }
  template <typename F, typename... Of>
  [[gnu::always_inline]] auto max(const F&, const Of&...) const {
    return m_reduced<sgl::details::Terms<F, Of...>>();
  }
  template <int kSize, typename F, typename... Of>
  [[gnu::always_inline]] NoGroups<kSize> sum(sgl::Groups<kSize>, const F&, const Of&...) const {
    return m_grouped<kSize, sgl::details::Terms<F, Of...>>();
  }
  template <int kSize, typename F, typename... Of>
  [[gnu::always_inline]] NoGroups<kSize> max(sgl::Groups<kSize>, const F&, const Of&...) const {
    return m_grouped<kSize, sgl::details::Terms<F, Of...>>();
  }
  template <int... kIndex, typename... T>
  [[gnu::always_inline]] void finish(const sgl::Stores<sgl::Bound<kIndex, T>...>&) const {
    ((roles.writes_list |= unsigned{sgl::details::kIsListed<T>} << kIndex), ...);
    ((sgl::details::kIsNumber<T>    ? roles.writes_value |= 1u << kIndex
      : sgl::details::kIsGrouped<T> ? roles.writes_groups |= 1u << kIndex
                                    : roles.writes |= 1u << kIndex),
     ...);
  }

 private:
  [[gnu::always_inline]] void m_read(unsigned& reads, int operand) const {
    reads |= 1u << operand;
    if (roles.stores_early != 0) roles.reads_late |= 1u << operand;
  }
  template <int kSize, typename Terms>
  [[gnu::always_inline]] NoGroups<kSize> m_grouped() const {
    static_assert(Terms::reduced_t::kCount == 1, "row.sum, row.max: the function returns one float for groups");
    ++roles.reductions;
    ++roles.kept;
    roles.group_size = kSize;
    return {};
  }
  template <typename Terms>
  [[gnu::always_inline]] auto m_reduced() const {
    ++roles.reductions;
    return Terms::result(Terms::template identity<false>());
  }
};

/// What is the same in all segments of a call, and what they are together.
struct ProgramPlan {
  std::uint64_t types = 0;
  std::uint64_t places = 0;
  std::uint64_t forms = 0;  ///< of the segments, see row_program_params.h
  unsigned seen = 0;        ///< the operands of `types` and `places`
  DLDevice device{};
  std::int64_t num_rows = 0;
  long long kept = 0;
  bool is_flat = true;  ///< no segment has inner rows: on a device a kernel of its own

  bool operator==(const ProgramPlan&) const = default;
};

/// The rows of one segment.
struct SegmentPlan {
  long long num_rows = 0;
  long long inner = 0;
  std::uint64_t inverse = 0;  ///< as in `sgl::RowSegment`, with the next two
  std::int64_t vectors = 0;
  std::uint64_t vector_inverse = 0;
  std::int64_t columns = 0;
  std::int64_t paired = 0;         ///< the first elements of a row, which make pairs
  std::int64_t elements = 0;       ///< of a vector
  std::int64_t element_bytes = 0;  ///< of the widest operand
  std::int64_t least_bytes = 0;    ///< of the narrowest element that is read
  std::int64_t narrow_bytes = 0;   ///< of the narrowest element that is read or stored
  std::int64_t read_bytes = 0;     ///< one element of each operand that is read and has rows of its own
  std::int64_t shared_bytes = 0;   ///< one element of each operand that is read and has one row for all
  sgl::RowWork work = sgl::RowWork::kOneInput;
  bool is_map = false;  ///< whether each element is computed from the same element of the others
  bool has_tail = false;
  bool is_peeled = false;  ///< rows that are not aligned, all in the same way: vectors begin at the first multiple
  bool is_kept = false;    ///< whether the program keeps values, which is for rows in registers
  bool is_neox = false;
  bool has_groups = false;
  bool has_list = false;     ///< whose program takes long: blocks that wait for it would crowd its multiprocessors
  bool reads_again = false;  ///< whether elements are needed after a reduction of them
  bool has_sums = false;     ///< whose bits depend on how many elements a vector has
  bool may_double = false;   ///< whether inner rows of the same outer one read much that is the same, such as angles

  bool operator==(const SegmentPlan&) const = default;
};

/// The operands of one segment, by their index.
struct SegmentRows {
  const Rows* const* rows;
  unsigned bound;  ///< a bit for each operand that was passed; the others' rows are any
};

/// Checks the operands of a call, and fills in the plans.
/// \throws TensorMatchError naming the operand and the rule; ValueError if rows that are written share memory.
SGL_INLINE void match_program(
    const SegmentRows* segments, const Roles* roles, int num_segments, int num_operands, ProgramPlan& plan,
    SegmentPlan* plans, DebugInfo location);

inline sgl::RowPlace place_of(const Rows& rows) {
  const auto bytes = rows.element_bytes();
  const auto* index = rows.index != nullptr ? rows.index->data_ptr() : nullptr;
  const auto gap = rows.block_stride - rows.block * rows.stride;
  const auto inverse = rows.block <= 1 ? 0 : ~std::uint64_t{0} / static_cast<std::uint64_t>(rows.block) + 1;
  return {index, rows.element_stride * bytes, gap * bytes, inverse};
}

/// How the blocks of a program share its rows, and a multiprocessor's registers.
struct ProgramLayout {
  unsigned block_threads = 0;
  unsigned least_blocks = 0;   ///< blocks of a multiprocessor that the compiler leaves registers for, or 0
  bool holds_for_all = true;   ///< whether registers are left for rows for all beside the others
  bool triggers_first = true;  ///< as in `sgl::RowLayout`
  bool has_pdl = false;
  unsigned cluster = 1;  ///< blocks that share a row
  std::int64_t blocks = 0;
};

/// How many threads share a row of so many vectors.
using choose_layout_t = sgl::RowLayout (*)(unsigned, sgl::RowWork, long long, const runtime::Chip&);

/// The blocks and the shapes of a call on a device.
SGL_INLINE void lay_out(
    const ProgramPlan& plan, const SegmentPlan* plans, sgl::RowShape* shapes, int num_segments, choose_layout_t choose,
    ProgramLayout& layout, long long* first_blocks, DebugInfo location);

inline bool has_fp8(std::uint64_t types) {
  for (; types != 0; types >>= 4) {
    if ((types & 15) == sgl::kFp8E4M3 || (types & 15) == sgl::kFp8E5M2) return true;
  }
  return false;
}

/// The kernel of a call on a device. Made if it does not exist yet.
SGL_INLINE LoadedVariant& kernel_of(
    Variants& kernels, const TemplateArg& functor, int num_operands, const ProgramPlan& plan,
    const ProgramLayout& layout, const sgl::RowShape* shapes, int num_segments);

/// Launches the kernel of a call on the current stream.
/// \param arguments the addresses of the kernel's parameters, with null at the end.
SGL_INLINE void launch_program(
    LoadedVariant& kernel, DLDevice device, const ProgramLayout& layout, void** arguments, DebugInfo location);

/// What a call on a device launches.
template <int kSegments>
struct ProgramLaunch {
  ProgramLayout layout;
  LoadedVariant* kernel = nullptr;
  long long first_blocks[kSegments] = {};
};

/// The last launch of a program, which most calls repeat. A thread that finds another one at it does without.
template <int kSegments>
struct LastLaunch {
 public:
  using Segments = SegmentPlan[kSegments];

  /// Copies it to `launch` if it had the same plan.
  bool find(const ProgramPlan& plan, const Segments& segments, ProgramLaunch<kSegments>& launch) {
    if (__atomic_test_and_set(&m_is_taken, __ATOMIC_ACQUIRE)) return false;
    bool is_same = m_launch.kernel != nullptr && m_plan == plan;
    for (int i = 0; i < kSegments; ++i) is_same = is_same && m_segments[i] == segments[i];
    if (is_same) launch = m_launch;
    __atomic_clear(&m_is_taken, __ATOMIC_RELEASE);
    return is_same;
  }
  void keep(const ProgramPlan& plan, const Segments& segments, const ProgramLaunch<kSegments>& launch) {
    if (__atomic_test_and_set(&m_is_taken, __ATOMIC_ACQUIRE)) return;
    m_plan = plan;
    for (int i = 0; i < kSegments; ++i) m_segments[i] = segments[i];
    m_launch = launch;
    __atomic_clear(&m_is_taken, __ATOMIC_RELEASE);
  }

 private:
  bool m_is_taken = false;
  ProgramPlan m_plan;
  Segments m_segments;
  ProgramLaunch<kSegments> m_launch;
};

/// What `{}` is in place of a functor.
struct FieldsNeedValues {};

/// A program's loops for the CPU: a function for the types and places of its operands, compiled when it is first
/// called. A table that is full asks the core each time.
struct ProgramOnCpu {
 public:
  explicit constexpr ProgramOnCpu(const char* file, const char* family = SGL_FAMILY) noexcept
      : m_file(file), m_family(family) {}

  /// \param signature of the function, the name of its type
  SGL_INLINE std::int64_t find(
      const TemplateArg& functor, int operands, int segments, const ProgramPlan& plan, const char* signature);

 private:
  struct Known {
    std::uint64_t types, places;
    std::int64_t function;
  };

  [[gnu::cold]] SGL_INLINE std::int64_t m_load(
      const TemplateArg& functor, int operands, int segments, const ProgramPlan& plan, const char* signature);

  const char* m_file;
  const char* m_family;
  Known m_known[16] = {};
  ::pthread_mutex_t m_mutex = PTHREAD_MUTEX_INITIALIZER;
};

/// The part of a call that depends on the numbers of operands and segments, and not on the functor. It is compiled once
/// for each pair of these numbers.
template <int kOperands, int kSegments>
struct ProgramCall {
 public:
  ProgramPlan plan;
  sgl::RowProgramParams<kOperands, kSegments> params;

  [[gnu::noinline]] void match(const SegmentRows (&segments)[kSegments], const Roles* roles, DebugInfo location) {
    match_program(segments, roles, kSegments, kOperands, plan, m_plans, location);
    params.kept = plan.kept;
    for (int i = 0; i < kSegments; ++i) {
      const auto& from = m_plans[i];
      auto& segment = params.segments[i];
      segment.num_rows = from.num_rows;
      segment.inner = from.inner;
      segment.inverse = from.inverse;
      segment.columns = from.columns;
      segment.paired = from.paired;
      segment.vectors = from.vectors;
      segment.vector_inverse = from.vector_inverse;
      segment.counts = nullptr;
      for (int n = 0; n < kOperands; ++n) {
        const Rows& rows = *segments[i].rows[n];
        if (rows.counts != nullptr) segment.counts = rows.counts->data_ptr();
        segment.data[n] = rows.data;
        segment.stride[n] = rows.stride * rows.element_bytes();
        segment.inner_stride[n] = rows.inner_stride * rows.element_bytes();
        segment.places[n] = (segments[i].bound >> n & 1) != 0 ? place_of(rows) : sgl::RowPlace{};
      }
    }
  }

  /// \param fields of the functor, or null if it has none
  [[gnu::noinline]] void launch(
      Variants& kernels, LastLaunch<kSegments>& last, const TemplateArg& functor, choose_layout_t choose,
      const void* fields, DebugInfo location) {
    ProgramLaunch<kSegments> found;
    if (!last.find(plan, m_plans, found)) {
      sgl::RowShape shapes[kSegments];
      lay_out(plan, m_plans, shapes, kSegments, choose, found.layout, found.first_blocks, location);
      found.kernel = &kernel_of(kernels, functor, kOperands, plan, found.layout, shapes, kSegments);
      last.keep(plan, m_plans, found);
    }
    params.segments[0].triggers_first = found.layout.triggers_first;
    for (int i = 0; i < kSegments; ++i) params.segments[i].first_block = found.first_blocks[i];
    void* of_functor[] = {const_cast<void*>(fields), &params, nullptr};
    void** arguments = fields != nullptr ? of_functor : of_functor + 1;
    launch_program(*found.kernel, plan.device, found.layout, arguments, location);
  }

 private:
  SegmentPlan m_plans[kSegments];
};

/// The type of a program's kernel.
template <typename Params, typename F>
constexpr const std::type_info& program_signature() noexcept {
  if constexpr (__is_empty(F)) return typeid(sgl::signature<sgl::described<void(Params)>>);
  else return typeid(sgl::signature<sgl::described<void(F, Params)>>);
}

}  // namespace details

/// \brief The rows of one call, or of one of its segments.
template <int kOperands>
struct ProgramRows {
  Rows rows[kOperands];
  unsigned bound;  ///< a bit for each operand that was passed; the others' rows are any
};

namespace details {

template <int kOperands>
[[gnu::noinline]] ProgramRows<kOperands> copied(const Rows* const (&rows)[kOperands], unsigned bound) {
  return [&]<std::size_t... I>(sgl::details::IndexList<I...>) -> ProgramRows<kOperands> {
    return {{*rows[I]...}, bound};
  }(sgl::details::IndexListUpTo<kOperands>{});
}

/// The rows of a call's segments where the caller has them.
template <int kOperands, int kSegments>
struct SegmentPointers {
  const Rows* rows[kSegments][kOperands];
  SegmentRows segments[kSegments];

  explicit SegmentPointers(const ProgramRows<kOperands> (&of)[kSegments]) {
    for (int i = 0; i < kSegments; ++i) {
      for (int n = 0; n < kOperands; ++n) rows[i][n] = &of[i].rows[n];
      segments[i] = {rows[i], of[i].bound};
    }
  }
};

/// The template arguments of a program's kernel, besides one for each segment.
inline constexpr int kProgramArgs = 7;
inline constexpr int kMostSegments = LoadedVariant::kMaxArgs - kProgramArgs;
static_assert(kMostSegments == 5);  // as the text for authors says

}  // namespace details

/// \brief An op that computes rows from rows, as its functor says. A global variable.
///
/// \tparam F the functor, in a named namespace, with `SGL_OPERANDS`; its call operator takes any row, and returns
///   `sgl::store(...)`. It may have fields; each call passes its own, and they are copied to the device.
/// \tparam kSegments the sets of rows of a call, such as those of q and those of k.
/// \tparam Layout how many threads share a row on CUDA: `Layout{}(vectors, work, num_rows, chip)`.
template <typename F, int kSegments = 1, typename Layout = sgl::ChooseRowLayout>
struct RowProgram {
 public:
  static constexpr int kOperands = F::kOperands;
  static_assert(kOperands <= sgl::kMostOperands, "RowProgram: a program has at most 15 operands");
  static_assert(kSegments <= details::kMostSegments, "RowProgram: a call has at most 5 sets of rows");

  /// \param file the file of the functor, relative to the family's csrc; a literal.
  explicit constexpr RowProgram(const char* file) noexcept
      : m_kernels(
            file, kHasFields ? "device::row_program" : "device::row_program_without_fields", SGL_FAMILY,
            details::program_signature<Params, F>()),
        m_on_cpu(file) {}

  /// \brief Computes the outputs of all rows. On CUDA it launches on the current stream of their device, and returns at
  /// once.
  /// \param bound each operand of the functor once: `F::x = host::rows("x", x)`.
  template <int... kIndex>
  void operator()(const F& f, const sgl::Bound<kIndex, Rows>&... bound) {
    static_assert(kSegments == 1, "RowProgram: pass the rows of each segment, {program.rows(...), program.rows(...)}");
    const Bindings all(bound...);
    m_run(f, {all.rows()}, all.by_index[0]->location);
  }
  /// \brief The same for several sets of rows.
  void operator()(const F& f, const ProgramRows<kOperands> (&segments)[kSegments], DebugInfo location = {}) {
    const Pointers pointers(segments);
    m_run(f, pointers.segments, location);
  }
  /// \brief A functor with fields needs their values: `{}`, which would be zeros without a word, is ambiguous.
  template <int... kIndex>
    requires(!__is_empty(F))
  void operator()(details::FieldsNeedValues, const sgl::Bound<kIndex, Rows>&...) = delete;
  void operator()(details::FieldsNeedValues, const ProgramRows<kOperands> (&)[kSegments], DebugInfo = {})
    requires(!__is_empty(F))
  = delete;

  /// \brief Checks what a call checks, and computes nothing: for an op that writes something before the call.
  template <int... kIndex>
  static void check(const F& f, const sgl::Bound<kIndex, Rows>&... bound) {
    static_assert(kSegments == 1, "RowProgram: pass the rows of each segment, {program.rows(...), program.rows(...)}");
    const Bindings all(bound...);
    Call call;
    s_match(f, {all.rows()}, call, all.by_index[0]->location);
  }
  /// \brief The same for several sets of rows.
  static void check(const F& f, const ProgramRows<kOperands> (&segments)[kSegments], DebugInfo location = {}) {
    const Pointers pointers(segments);
    Call call;
    s_match(f, pointers.segments, call, location);
  }

  /// \brief The rows of one segment: each operand of the functor once.
  template <int... kIndex>
  static ProgramRows<kOperands> rows(const sgl::Bound<kIndex, Rows>&... bound) {
    const Bindings all(bound...);
    return details::copied<kOperands>(all.by_index, all.bound);
  }

 private:
  using Call = details::ProgramCall<kOperands, kSegments>;
  using Pointers = details::SegmentPointers<kOperands, kSegments>;
  using Params = sgl::RowProgramParams<kOperands, kSegments>;
  static constexpr bool kHasFields = !__is_empty(F);

  /// The rows of one segment where the caller has them.
  struct Bindings {
    const Rows* by_index[kOperands] = {};
    unsigned bound;

    template <int... kIndex>
    [[gnu::always_inline]] explicit Bindings(const sgl::Bound<kIndex, Rows>&... all)
        : bound(((1u << kIndex) | ... | 0u)) {
      constexpr unsigned kBound = ((1u << kIndex) | ... | 0u);
      static_assert(
          __builtin_popcount(kBound) == sizeof...(kIndex) &&
              (sgl::details::kHasSegments<F, details::RoleRow> || kBound == (1u << kOperands) - 1),
          "RowProgram: pass each operand that SGL_OPERANDS names once, F::x = rows");
      ((by_index[kIndex] = &all.value), ...);
      if constexpr (kBound != (1u << kOperands) - 1) {
        const Rows* any = nullptr;
        for (const auto* rows : by_index) any = rows != nullptr ? rows : any;
        for (auto& rows : by_index) rows = rows != nullptr ? rows : any;
      }
    }
    details::SegmentRows rows() const {
      return {by_index, bound};
    }
  };

  static void s_match(const F& f, const details::SegmentRows (&segments)[kSegments], Call& call, DebugInfo location) {
    details::Roles roles[kSegments];
    s_ask(f, roles, sgl::details::IndexListUpTo<kSegments>{});
    constexpr int kAlike = sgl::details::alike_of<F>();
    static_assert(1 <= kAlike && kAlike <= kSegments, "RowProgram: kAlike is at most the number of sets of rows");
    unsigned bound = 0;
    for (int i = 0; i < kAlike; ++i) bound |= segments[i].bound;
    for (int i = 0; i < kAlike && kAlike > 1; ++i) {
      roles[i].lacks = roles[i].writes & bound & ~(segments[i].bound | roles[i].reads | roles[i].stores_early);
      roles[i].writes &= ~roles[i].lacks;
    }
    call.match(segments, roles, location);
  }

  void m_run(const F& f, const details::SegmentRows (&segments)[kSegments], DebugInfo location) {
    static_assert(__is_trivially_copyable(F), "RowProgram: the functor must be trivially copyable");
    Call call;
    s_match(f, segments, call, location);
    if (call.plan.num_rows == 0) return;
    const auto functor = details::template_argument(type<F>);
    if (call.plan.device.device_type != kDLCPU)
      return call.launch(m_kernels, m_last, functor, s_choose, kHasFields ? &f : nullptr, location);
    using function_t = void (*)(const Params&, const F&);
    const auto function =
        m_on_cpu.find(functor, kOperands, kSegments, call.plan, details::signature_name<function_t>());
    reinterpret_cast<function_t>(function)(call.params, f);
  }

  static sgl::RowLayout s_choose(unsigned vectors, sgl::RowWork work, long long num_rows, const runtime::Chip& chip) {
    return Layout{}(vectors, work, num_rows, chip);
  }

  template <std::size_t... I>
  [[gnu::always_inline]] static void s_ask(
      const F& f, details::Roles (&roles)[kSegments], sgl::details::IndexList<I...>) {
    ((roles[I] = details::RoleRow::roles_of<static_cast<int>(I)>(f)), ...);
  }

  details::Variants m_kernels;
  details::LastLaunch<kSegments> m_last;
  details::ProgramOnCpu m_on_cpu;
};

/// \brief Checks the index of rows as a program does, for an op with a kernel of its own: its dtype, its device, and
/// where `indexed` says so its elements.
SGL_INLINE void match_index(const Rows& rows);

}  // namespace host

#if SGL_BODIES

namespace host::details {

/// The code of an element type in a program.
inline unsigned element_code(DLDataType dtype) {
  constexpr auto number = [](DLDataType of) { return unsigned{of.code} | of.bits << 8 | unsigned{of.lanes} << 16; };
  switch (number(dtype)) {
    case number(dtype_of<float>::value):
      return sgl::kFp32;
    case number(dtype_of<__half>::value):
      return sgl::kFp16;
    case number(dtype_of<__nv_bfloat16>::value):
      return sgl::kBf16;
    case number(dtype_of<__nv_fp8_e4m3>::value):
      return sgl::kFp8E4M3;
    case number(dtype_of<__nv_fp8_e5m2>::value):
      return sgl::kFp8E5M2;
    case number(dtype_of<std::int8_t>::value):
      return sgl::kInt8;
    case number(dtype_of<std::uint8_t>::value):
      return sgl::kUInt8;
    case number(dtype_of<std::int32_t>::value):
      return sgl::kInt32;
    case number(dtype_of<std::int64_t>::value):
      return sgl::kInt64;
    default:
      return sgl::kNoElement;
  }
}

/// The threads of a warp that share a row, so that each has both elements of its pairs of i and i + half.
inline unsigned threads_of_halves(std::int64_t paired, std::int64_t elements) {
  constexpr unsigned kWarp = 32;
  const auto vectors = static_cast<unsigned>(paired / 2 / elements);
  unsigned threads = 1;
  while (threads < kWarp && vectors % (2 * threads) == 0) threads *= 2;
  return threads;
}

/// The shape of a segment's rows; of a row that a whole block shares, before the block is known. Adds to the block.
/// \param is_only whether the call has no other segment: all its blocks may form clusters.
inline sgl::RowShape shape_of(
    const SegmentPlan& segment, bool is_only, std::int64_t num_rows, const runtime::Chip& chip, choose_layout_t choose,
    ProgramLayout& layout) {
  constexpr unsigned kWarp = 32, kBlock = 128;
  if (segment.is_map) return {0, 0, static_cast<unsigned>(segment.elements), 0, true, segment.has_tail};
  if (segment.is_neox && segment.columns > sgl::RowShape::kMostColumns)
    throw Error(
        "ValueError", "row program: rows whose pairs are i and i + half have at most ",
        std::int64_t{sgl::RowShape::kMostColumns}, " elements, got ", segment.columns);
  auto row =
      sgl::layout_rows(segment.columns, segment.elements, segment.element_bytes, segment.work, num_rows, chip, choose);
  const bool is_peeled = segment.is_peeled && is_only;
  auto elements = is_peeled ? sgl::kWordBytes / segment.element_bytes : segment.elements;
  const auto vectors = segment.columns / elements;
  if (is_peeled) row = sgl::generic_layout(vectors);
  const bool is_short = !is_peeled && vectors > 0 && vectors <= sgl::kMaxRowVectors;
  if (segment.is_kept && !row.is_resident() && is_short)
    row = choose(static_cast<unsigned>(vectors), segment.work, num_rows, chip);
  if (segment.paired > 0 && !is_short)
    throw Error(
        "ValueError", "row program: rows with pairs have at most ", std::int64_t{sgl::kMaxRowVectors}, " loads, got ",
        segment.columns, " elements by loads of ", segment.elements);
  // Of few rows a layout may ask for blocks that share them; of many it says whether it holds rows at all.
  constexpr auto kMany = sgl::kMaxBlocks;
  const bool holds = choose(sgl::kMaxRowVectors, segment.work, kMany, chip).is_resident();
  const bool may_hold =
      holds && segment.reads_again && segment.elements > 1 && segment.elements * segment.element_bytes >= 8;
  auto shared = is_only && !row.is_resident() ? sgl::share_row(vectors, may_hold ? segment.elements : 0, num_rows, chip)
                                              : sgl::SharedRow{};
  if (holds && segment.is_kept && is_short && !row.is_resident() && !shared.is_held) {
    shared = {};
    row = choose(static_cast<unsigned>(vectors), segment.work, kMany, chip);
  }
  if (shared.blocks > 1) row = {shared.is_held ? shared.threads : 0, shared.threads, row.triggers_first};
  if (!row.is_resident() && (segment.has_groups || segment.paired > 0))
    throw Error(
        "ValueError",
        "row program: rows with groups or pairs are held in registers, and the layout that this program was given "
        "holds "
        "none of ",
        vectors, " loads");
  const bool has_room = 2 * kWarp * num_rows <= 1LL * chip.num_sms * chip.threads_per_sm;
  if (segment.is_neox) {
    // A whole warp is done with a row sooner than a few threads with wide vectors, where the chip has room for it.
    while (has_room && !segment.has_sums && elements > 1 && threads_of_halves(segment.paired, elements) < kWarp)
      elements /= 2;
    row = {threads_of_halves(segment.paired, elements), kBlock, row.triggers_first};
  }
  // With more short rows than the chip has room for, two vectors a thread: one would wait for its sum as long. A list
  // is a chain of reductions: half as many threads are done with each sooner, from an eighth of that on.
  const auto threads = (segment.has_list ? 8 : 1) * num_rows * row.threads_per_row;
  const bool is_full = threads >= 1LL * chip.num_sms * chip.threads_per_sm;
  const bool may_halve = !segment.is_neox && !segment.has_groups;
  if (is_full && may_halve && row.threads_per_row > 1 && row.threads_per_row <= kWarp / 2) row.threads_per_row /= 2;
  // Rows of up to a warp come in many blocks: a next kernel that is there early takes the room of those to come. Those
  // of pairs, such as the heads of few tokens, let it come early: so they were measured.
  const bool is_small = vectors <= kWarp && segment.paired == 0;
  layout.triggers_first = layout.triggers_first && row.triggers_first && !is_small && !segment.has_list;
  // A warp for a row of groups reads and writes little: larger blocks are fewer to start.
  if (segment.has_groups && row.threads_per_row == kWarp) row.block_threads = 2 * kBlock;
  if (layout.block_threads < row.block_threads) layout.block_threads = row.block_threads;
  // Two rows of few bytes fit in the registers. Rows of i and i + half without sums are as fast one by one where
  // they fill the chip: their threads need the fewest registers.
  const bool are_few = segment.columns * segment.least_bytes <= 64 * static_cast<std::int64_t>(row.threads_per_row);
  const bool is_double = segment.may_double && segment.inner % 2 == 0 && row.threads_per_row <= kWarp && are_few &&
                         (segment.has_sums || !segment.is_neox || has_room);
  return {
      row.is_resident() ? static_cast<unsigned>(segment.columns) : 0,
      static_cast<unsigned>(segment.paired),
      static_cast<unsigned>(elements),
      row.threads_per_row <= kWarp ? row.threads_per_row : 0,
      false,
      is_peeled,
      shared.blocks,
      is_double};
}

/// Completes the shapes, and decides what the registers are for.
inline void choose_registers(
    const SegmentPlan* segments, sgl::RowShape* shapes, int num_segments, const runtime::Chip& chip,
    ProgramLayout& layout) {
  constexpr std::int64_t kWord = 4, kWarps = 4 * 32;  // a warp for each scheduler of a multiprocessor
  // Each of the four schedulers has 16384 registers for its warps, and deals them out by eights.
  const auto registers_of = [&](std::int64_t blocks) -> std::int64_t {
    const auto threads = blocks * (layout.block_threads > kWarps ? layout.block_threads : kWarps);
    return threads > chip.threads_per_sm ? 0 : 16384 / (div_ceil(threads, kWarps) * 32) / 8 * 8;
  };
  bool is_bound = true, has_two = true;  // of segments that are held
  std::int64_t least = 3;  // a multiprocessor does well with three rows: one waits, one is reduced, one is stored
  // Rotations of more rows than the chip has room for, twice: with three quarters of its threads enough loads are under
  // way. The compiler would take registers for fewer; where others share the block, these are too few for it.
  bool are_pairs = layout.block_threads == kWarps, are_all_double = true;
  std::int64_t threads = 0;
  for (int i = 0; i < num_segments; ++i) {
    are_pairs = are_pairs && segments[i].is_neox && !segments[i].has_sums;
    are_all_double = are_all_double && shapes[i].is_double;
    threads += segments[i].num_rows * shapes[i].threads;
  }
  const bool is_many = threads >= 2LL * chip.num_sms * chip.threads_per_sm;
  for (int i = 0; i < num_segments; ++i) {
    const auto& segment = segments[i];
    auto& shape = shapes[i];
    if (shape.is_map) {
      has_two = false;
      continue;
    }
    if (shape.threads == 0) shape.threads = layout.block_threads;
    const auto held = div_ceil(segment.columns / shape.elements, std::int64_t{shape.threads} * shape.blocks);
    const auto for_row = held * shape.elements * segment.read_bytes / kWord;
    const auto for_all = held * shape.elements * segment.shared_bytes / kWord;
    const auto needed =
        for_row + (segment.least_bytes < kWord ? 40 : 24);  // of short elements some are floats at a time
    // Large blocks of which two just fit: of elements that stay packed few more registers are needed.
    has_two = has_two && held > 2 && registers_of(2) < 64 && for_row + for_all + 16 <= registers_of(2);
    std::int64_t blocks = 3;
    while (blocks > 1 && needed > registers_of(blocks)) --blocks;
    if (for_row + for_all + 24 > registers_of(blocks)) layout.holds_for_all = false;
    if (shape.blocks > 1 && shape.columns != 0) {
      layout.least_blocks = static_cast<unsigned>(blocks);  // the rows are long: one block alone would leave gaps
      return;
    }
    is_bound = is_bound && shape.columns != 0 && held <= 8;
    if (blocks < least) least = blocks;
  }
  if (are_pairs && is_many)
    layout.least_blocks = static_cast<unsigned>(chip.threads_per_sm * 3 / 4 / layout.block_threads);
  if (is_bound && !layout.holds_for_all) layout.least_blocks = static_cast<unsigned>(least);
  if (is_bound && layout.holds_for_all && has_two) layout.least_blocks = 2;
  // Of double rows the compiler would hold too little at a time, to have more blocks. So they were measured.
  if (shapes[0].is_double && layout.block_threads == kWarps)
    layout.least_blocks = !segments[0].has_sums ? 7 : are_all_double ? 5 : is_many ? 8 : 6;
}

SGL_INLINE void lay_out(
    const ProgramPlan& plan, const SegmentPlan* plans, sgl::RowShape* shapes, int num_segments, choose_layout_t choose,
    ProgramLayout& layout, long long* first_blocks, DebugInfo location) {
  const auto chip = runtime::get_chip(plan.device.device_id, location);
  layout.has_pdl = chip.has_pdl();
  for (int i = 0; i < num_segments; ++i)
    shapes[i] = shape_of(plans[i], num_segments == 1, plan.num_rows, chip, choose, layout);
  // Maps alone have larger blocks: fewer to start. Beside other rows these decide.
  if (layout.block_threads == 0) layout.block_threads = 256;
  choose_registers(plans, shapes, num_segments, chip, layout);
  layout.cluster = shapes[0].blocks;
  for (int i = 0; i < num_segments; ++i) {
    const auto& segment = plans[i];
    first_blocks[i] = layout.blocks;
    layout.blocks += shapes[i].is_map ? div_ceil(segment.num_rows * segment.vectors, std::int64_t{layout.block_threads})
                                      : div_ceil(
                                            segment.num_rows, std::int64_t{layout.block_threads / shapes[i].threads}
                                                                  << shapes[i].is_double) *
                                            shapes[i].blocks;
  }
}

SGL_INLINE LoadedVariant& kernel_of(
    Variants& kernels, const TemplateArg& functor, int num_operands, const ProgramPlan& plan,
    const ProgramLayout& layout, const sgl::RowShape* shapes, int num_segments) {
  const auto variant = Variant::of(kernels, [&](TemplateArg* args) {
    args[0] = functor;
    args[1] = template_argument(num_operands);
    args[2] = template_argument(layout.block_threads);
    args[3] = template_argument(layout.least_blocks);
    args[4] = template_argument(layout.holds_for_all);
    args[5] = has_fp8(plan.types) ? template_argument(sgl::TypesWithFp8{plan.types}) : template_argument(plan.types);
    args[6] = template_argument(plan.places | (plan.is_flat ? sgl::kIsFlat : 0));
    for (int i = 0; i < num_segments; ++i) args[kProgramArgs + i] = template_argument(shapes[i].number());
    return static_cast<std::uint32_t>(kProgramArgs + num_segments);
  });
  return variant.on(runtime::this_device(plan.device.device_id));
}

SGL_INLINE void launch_program(
    LoadedVariant& kernel, DLDevice device, const ProgramLayout& layout, void** arguments, DebugInfo location) {
  LaunchKernel native(layout.blocks, layout.block_threads, device, 0, location);
  native.enable_pdl(layout.has_pdl).enable_cluster(layout.cluster);
  launch_loaded(native.config(), location, kernel, arguments);
}

/// An operand with elements for pairs says how many elements make pairs.
inline void match_pairs(const Rows& rows, const Roles& roles, SegmentPlan& segment, DebugInfo location) {
  const auto paired = rows.columns / roles.parts_of_pairs * 2;
  if (rows.columns % roles.parts_of_pairs != 0 || paired > segment.columns || paired == 0)
    rows.raise(
        location, {"Size mismatch for a row: expected a multiple of ", roles.parts_of_pairs, " elements, from ",
                   roles.parts_of_pairs, " to ", segment.columns / 2 * roles.parts_of_pairs, ", as it has ",
                   roles.parts_of_pairs, " for each of up to ", segment.columns / 2, " pairs, but got ", rows.columns});
  if (segment.paired != 0 && segment.paired != paired)
    rows.raise(
        location,
        {"Size mismatch for a row: expected elements for ", segment.paired / 2, " pairs but got ", paired / 2});
  segment.paired = paired;
}

/// Refuses an index that names rows which are not there, or counts of more rows than there are: elements from `first`
/// on, which are at `data`.
inline void check_index(
    const Rows& rows, const void* data, std::int64_t first, std::int64_t count, bool are_counts, DebugInfo location) {
  const bool is_long = is_type<std::int64_t>(rows.index->dtype());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row =
        is_long ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
    if (are_counts ? row >= 0 && row <= rows.inner : row < rows.count && (row >= 0 || rows.skips_negative)) continue;
    if (are_counts)
      rows.raise_about_index(
          location, {"Count out of range: element ", first + i, " is ", row, ", and ", rows.name, " has ", rows.inner,
                     " rows for each"});
    rows.raise_about_index(
        location, {"Index out of range: element ", first + i, " is ", row, ", and ", rows.name, " has ", rows.count,
                   " rows", row < 0 && !rows.skips_negative ? "; this op skips no negative ones" : ""});
  }
}

/// The same of an index on a device: copies it to the host, which waits for all that is in the stream before.
[[gnu::cold, gnu::noinline]] inline void check_index_of_device(
    const Rows& rows, DLDevice device, bool are_counts, DebugInfo location) {
  constexpr std::int64_t kCopied = 1024;
  std::int64_t copy[kCopied] = {};
  const auto& api = driver::api();
  const runtime::DeviceGuard guard{device.device_id, location};
  const auto stream = LaunchKernel::resolve_device(device);
  int is_capturing = 0;
  driver::check(api.StreamIsCapturing(stream, &is_capturing), location);
  if (is_capturing != 0)
    rows.raise_about_index(
        location, {"An index cannot be checked while the stream is being captured, because the host waits for it: "
                   "capture without SGLJIT_CHECK_INDICES=1"});
  const std::int64_t length = rows.index->numel(), bytes = rows.index->dtype().bits / 8;
  const auto* data = static_cast<const char*>(rows.index->data_ptr());
  for (std::int64_t first = 0; first < length; first += kCopied) {
    const auto count = length - first < kCopied ? length - first : kCopied;
    driver::check(
        api.MemcpyDtoHAsync(copy, data + first * bytes, static_cast<std::size_t>(count * bytes), stream), location);
    driver::check(api.StreamSynchronize(stream), location);
    check_index(rows, copy, first, count, are_counts, location);
  }
}

/// Checks the index of rows, or counts in its place.
inline void match_index(const Rows& rows, DLDevice device, bool are_counts, DebugInfo location) {
  const auto& index = *rows.index;
  if (!is_type<std::int32_t>(index.dtype()) && (are_counts || !is_type<std::int64_t>(index.dtype())))
    rows.raise_about_index(
        location,
        {"DType mismatch: expected ", are_counts ? "int32" : "one of [int32, int64]", " but got ", index.dtype()});
  if (!::host::operator==(index.device(), device))
    rows.raise_about_index(location, {"Device mismatch: expected ", device, " but got ", index.device()});
  const bool on_cpu = device.device_type == kDLCPU;
  if (!checks_indices(on_cpu)) return;
  if (on_cpu) check_index(rows, index.data_ptr(), 0, index.numel(), are_counts, location);
  else check_index_of_device(rows, device, are_counts, location);
}

/// Refuses memory with which the result would depend on the order of the rows: of one segment, or of two.
inline void refuse_meeting_rows(
    const Rows* const* operands, const Roles& roles, const Rows* const* others, const Roles& other_roles,
    int num_operands, DebugInfo location);

/// Whether rows that no wide vector divides may begin with single elements, and go on with vectors: each row of an
/// operand is as far from a multiple of a vector's size as those of the others.
inline bool may_peel(const Rows* const* operands, const Roles& roles, int num_operands) {
  const unsigned values = roles.reads_value | roles.writes_value;
  const auto beyond = [](std::int64_t bytes) { return bytes & (sgl::kWordBytes - 1); };
  const Rows* like = nullptr;
  for (int i = 0; i < num_operands; ++i) {
    const Rows& rows = *operands[i];
    if ((roles.asks() >> i & 1) == 0) return false;  // the kernel would look at its address
    if ((values >> i & 1) != 0) continue;
    if (like == nullptr) like = &rows;
    const auto bytes = rows.element_bytes();
    const bool is_alike =
        bytes == like->element_bytes() &&
        beyond(reinterpret_cast<std::intptr_t>(rows.data)) == beyond(reinterpret_cast<std::intptr_t>(like->data)) &&
        (rows.count <= 1 || beyond(rows.stride * bytes) == beyond(like->stride * bytes));
    if (!is_alike || rows.is_shared || rows.index != nullptr || rows.inner != 1) return false;
  }
  return like != nullptr;
}

inline void refuse_missing(unsigned operands, int segment) {
  if (operands == 0) return;
  throw Error(
      "TypeError", "row program: segment ", segment, " uses operand ", __builtin_ctz(operands),
      " of SGL_OPERANDS, counted from 0, which was not passed");
}

/// Checks the operands of one segment, and adds what they say to the plan.
inline void match_segment(
    const Rows* const* operands, int num_operands, unsigned bound, int number, const Roles& roles, ProgramPlan& plan,
    SegmentPlan& segment, DebugInfo location) {
  auto& num_rows = segment.num_rows;
  auto& inner = segment.inner;
  const unsigned asks = roles.asks(), writes = roles.all_writes(), values = roles.reads_value | roles.writes_value;
  const unsigned narrow = roles.pairs | values | roles.writes_groups;
  const Rows* like = nullptr;  // the others are compared with the first that has rows of its own
  bool has_gaps = false;
  int num_inputs = 0;
  refuse_missing((asks | roles.stores_early) & ~bound, number);
  if (const unsigned unstored = roles.stores_early & ~roles.writes; unstored != 0)
    throw Error(
        "TypeError", "row program: segment ", number, " keeps a value for ", operands[__builtin_ctz(unstored)]->name,
        ", which it does not store: sgl::store needs it, too");
  for (unsigned late = roles.reads_late; late != 0; late &= late - 1) {
    const int i = __builtin_ctz(late);
    // Rows for all and rows by an index share no memory with those of another operand that is stored.
    if ((roles.stores_early >> i & 1) == 0 && (operands[i]->is_shared || operands[i]->index != nullptr)) continue;
    throw Error(
        "TypeError", "row program: segment ", number, " reads ", operands[i]->name, " after it keeps a value for ",
        operands[__builtin_ctz(roles.stores_early)]->name, ", which may be stored by then: read all operands before");
  }
  for (int i = 0; i < num_operands; ++i) {
    const unsigned bit = 1u << i;
    if ((asks & bit) == 0) continue;
    const bool is_whole = (narrow & bit) == 0 && !operands[i]->is_shared && operands[i]->inner != Rows::kForAllInner;
    if (is_whole && like == nullptr) like = operands[i];
    has_gaps = has_gaps || !is_whole || !operands[i]->has_no_gaps();
  }
  if (like == nullptr) like = operands[0];
  segment.is_map = roles.reductions == 0 && roles.kept == 0 && (roles.pairs | roles.writes_value) == 0;
  segment.is_kept = roles.kept > 0;
  segment.is_neox = roles.is_neox;
  segment.has_groups = roles.group_size != 0;
  segment.has_list = roles.list_size > 0;
  segment.reads_again = roles.reductions + (roles.writes != 0) > 1;
  segment.has_sums = roles.sums > 0;
  const auto outer_of = [](const Rows& rows) { return rows.index != nullptr ? rows.index->numel() : rows.count; };
  const auto inner_of = [](const Rows& rows) { return rows.inner == Rows::kForAllInner ? 1 : rows.inner; };
  const auto outer = outer_of(*like);
  inner = inner_of(*like);
  num_rows = outer * inner;
  if (number == 0) plan.device = like->tensor.device();
  const TensorView* counts = nullptr;
  for (int i = 0; i < num_operands; ++i) {
    if (operands[i]->counts == nullptr || operands[i]->counts == counts) continue;
    if (counts != nullptr) throw Error("TypeError", "row program: the rows of segment ", number, " are counted twice");
    counts = operands[i]->counts;
    auto rows = *operands[i];
    rows.inner = inner;
    rows.index = rows.counts;
    rows.index_name = rows.counts_name;
    if (rows.index->numel() != outer)
      rows.raise_about_index(location, {"Size mismatch: expected ", outer, " elements but got ", rows.index->numel()});
    match_index(rows, plan.device, true, location);
    plan.places |= sgl::kIsCounted;
    has_gaps = true;
  }
  segment.may_double = roles.pairs != 0 && roles.stores_early == 0 && (plan.places & sgl::kIsCounted) == 0;
  const bool is_one_row = segment.is_map && !roles.uses_size && !has_gaps;
  segment.columns = like->columns;
  segment.elements = sgl::kWordBytes;
  segment.least_bytes = segment.narrow_bytes = sgl::kWordBytes;
  if (roles.list_size > sgl::kMostListed || roles.list_size > segment.columns)
    throw Error(
        "ValueError", "row program: a list of ", roles.list_size, " states; it has at most ",
        std::int64_t{sgl::kMostListed}, ", and one for each of the ", segment.columns, " elements of a row");
  for (int i = 0; i < num_operands; ++i) {
    const Rows& rows = *operands[i];
    const unsigned bit = 1u << i;
    if ((asks & bit) == 0) continue;
    const bool is_value = (values & bit) != 0;
    const bool is_written = (writes & bit) != 0;
    const auto dtype = rows.dtype;
    const auto code = element_code(dtype);
    const bool is_integer = code == sgl::kInt32 || code == sgl::kInt64;
    const bool is_byte = code == sgl::kInt8 || code == sgl::kUInt8;
    const bool is_fp8 = code == sgl::kFp8E4M3 || code == sgl::kFp8E5M2;
    const bool is_refused = is_value ? is_byte || is_fp8 : is_integer || (is_byte && !rows.takes_bytes);
    if (code == sgl::kNoElement || is_refused)
      rows.raise(
          location, {"DType mismatch: expected one of [",
                     is_value           ? "float32, float16, bfloat16, int32, int64"
                     : rows.takes_bytes ? "float32, float16, bfloat16, float8, int8, uint8"
                                        : "float32, float16, bfloat16, float8",
                     "] but got ", dtype});
    const auto device = rows.tensor.device();
    if (device.device_type != kDLCPU && device.device_type != kDLCUDA)
      rows.raise(
          location, {"Device mismatch: expected one of [cpu, cuda] but got ", device,
                     device.device_type == kDLROCM ? "; on ROCm only kernels of load_jit run" : ""});
    if (!::host::operator==(device, plan.device))
      rows.raise(location, {"Device mismatch: expected ", plan.device, " but got ", device});
    const bool is_of_pairs = (roles.pairs & bit) != 0;
    if (is_of_pairs) {
      match_pairs(rows, roles, segment, location);
      segment.may_double = segment.may_double && rows.inner == Rows::kForAllInner;
    }
    const bool is_of_groups = (roles.writes_groups & bit) != 0, is_list = (roles.writes_list & bit) != 0;
    if (roles.group_size != 0 && segment.columns % roles.group_size != 0)
      like->raise(
          location,
          {"Size mismatch for a row: expected whole groups of ", roles.group_size, " but got ", segment.columns});
    if (rows.element_stride != 1 && !is_of_groups && !is_list)
      rows.raise(location, {"Stride mismatch: expected the elements of a row side by side"});
    const auto columns = is_list        ? roles.list_size
                         : is_value     ? 1
                         : is_of_pairs  ? rows.columns
                         : is_of_groups ? segment.columns / roles.group_size
                                        : segment.columns;
    if (rows.columns != columns)
      rows.raise(location, {"Size mismatch for a row: expected ", columns, " but got ", rows.columns});
    const bool is_shared = rows.is_shared && !is_written, is_for_all = is_shared && rows.inner <= 1;  // not in groups
    if (!is_shared && outer_of(rows) != outer) {
      if (rows.index != nullptr)
        rows.raise_about_index(location, {"Size mismatch: expected ", outer, " elements but got ", outer_of(rows)});
      rows.raise(location, {"Size mismatch for the number of rows: expected ", outer, " but got ", outer_of(rows)});
    }
    if (!is_for_all && inner_of(rows) != inner && (rows.inner != Rows::kForAllInner || is_written))
      rows.raise(
          location,
          {"Size mismatch for the rows of each, such as heads: expected ", inner, " but got ", inner_of(rows)});
    std::uint64_t place = (is_for_all ? sgl::kForAll : 0) | (is_value || rows.is_packed ? sgl::kOneValue : 0);
    if (rows.index != nullptr) {
      if (rows.skips_negative && ((roles.reads | roles.reads_value | roles.pairs) & bit) != 0)
        throw Error(
            "TypeError", "row program: segment ", number, " reads ", rows.name, " by ", rows.index_name,
            ", which skips negative elements. Only rows that are written and not read may be skipped");
      match_index(rows, plan.device, false, location);
      place |= is_type<std::int32_t>(rows.index->dtype()) ? sgl::kIndexed : sgl::kLongIndexed;
      if (rows.block != 0) plan.places |= sgl::kInBlocks;
    } else if (rows.block != 0) {
      if (rows.stride != 0) rows.raise(location, {"Stride mismatch: rows of blocks that lie apart need an index"});
      if (rows.block_stride != 0) plan.places |= sgl::kRepeats;
    }
    const auto types = static_cast<std::uint64_t>(code) << 4 * i;
    const auto places = place << 4 * i;
    if ((plan.seen & bit) == 0) {
      plan.seen |= bit;
      plan.types |= types;
      plan.places |= places;
    } else if ((((plan.types ^ types) | (plan.places ^ places)) >> 4 * i & 15) != 0) {
      rows.raise(
          location,
          {"DType mismatch: an operand has the same dtype, and an index of the same dtype, in all segments; got ",
           dtype});
    }
    if (is_value || is_of_groups) continue;
    const auto bytes = rows.element_bytes();
    if (bytes < segment.narrow_bytes) segment.narrow_bytes = bytes;
    if ((roles.reads & bit) != 0) {
      (is_for_all ? segment.shared_bytes : segment.read_bytes) += bytes;
      if (bytes < segment.least_bytes) segment.least_bytes = bytes;
      num_inputs += !is_for_all;
    }
    if (!is_for_all && !is_of_pairs && bytes > segment.element_bytes) segment.element_bytes = bytes;
    const bool has_stride = (outer > 1 || rows.index != nullptr) && !is_one_row;
    const auto word = widest_word(
        rows.data, has_stride ? rows.stride * bytes : 0, rows.block_stride * bytes,
        rows.inner > 1 ? rows.inner_stride * bytes : 0, segment.is_map ? 0 : rows.columns * bytes);
    if (word < bytes)
      raise(
          "ValueError", {rows.name, ": its address is not a multiple of its element size, ", bytes, " bytes, at ",
                         location, ": ", rows.tensor});
    if (word < sgl::kWordBytes && word / bytes < segment.elements) segment.elements = word / bytes;
  }
  if (roles.sums > 1) segment.work = sgl::RowWork::kTwoPasses;
  else if (num_inputs > 1) segment.work = sgl::RowWork::kMoreInputs;
  if (segment.element_bytes > 0 && sgl::kWordBytes / segment.element_bytes < segment.elements)
    segment.elements = sgl::kWordBytes / segment.element_bytes;
  if (!segment.is_map)
    while (segment.columns % segment.elements != 0) segment.elements /= 2;
  if (roles.group_size != 0 && segment.elements > roles.group_size) segment.elements = roles.group_size;
  // A warp shares a group, and the threads of a row hold it.
  const bool is_held =
      segment.columns <= sgl::kMaxRowVectors * segment.elements && roles.group_size <= 32 * segment.elements;
  if (roles.group_size != 0 && !is_held && segment.columns > 0 && plan.device.device_type != kDLCPU)
    like->raise(
        location, {"groups of ", roles.group_size, " elements need rows at multiples of ", roles.group_size / 32,
                   " elements, and of at most ", sgl::kMaxRowVectors, " loads; got loads of ", segment.elements});
  if (segment.paired > 0) {  // whole vectors of pairs, and of the elements that each pair has
    while (segment.elements > 1 && segment.paired % (2 * segment.elements) != 0) segment.elements /= 2;
  }
  if (num_rows > 0) refuse_meeting_rows(operands, roles, operands, roles, num_operands, location);
  if (is_one_row) {
    segment.columns *= num_rows;
    num_rows = num_rows > 0 ? 1 : 0;
  }
  segment.has_tail = segment.columns % segment.elements != 0;
  // Narrow loads reach half of the memory's rate. Shorter rows have as many elements beside their vectors as in them.
  constexpr std::int64_t kLeastBytes = 512;
  const bool is_narrow = segment.elements * segment.element_bytes < 8 && num_rows > 0 &&
                         segment.columns * segment.element_bytes >= kLeastBytes;
  const bool is_resident = segment.is_kept && segment.columns <= sgl::kMaxRowVectors * segment.elements;
  if (is_narrow && !segment.is_map && !is_resident && (roles.group_size | segment.paired) == 0)
    segment.is_peeled = may_peel(operands, roles, num_operands);
}

inline void refuse_meeting_rows(
    const Rows* const* operands, const Roles& roles, const Rows* const* others, const Roles& other_roles,
    int num_operands, DebugInfo location) {
  const bool is_one = operands == others;
  const auto refuse = [&](const Rows& written, const Rows& other) {
    raise(
        "ValueError",
        {"rows of ", written.name, " share memory with each other or with other rows of ", other.name, ", at ",
         location, ": ", written.name, " is ", written.tensor, ", ", other.name, " is ", other.tensor,
         ". Rows with different strides must not overlap, and rows that cannot be proven disjoint count as "
         "overlapping"});
  };
  // A row that is written over an index would send later rows anywhere: it was checked before.
  const auto refuse_over = [&](const Rows& written, const TensorView* index, const char* name) {
    if (index == nullptr) return;
    const MemoryRows memory(index->data_ptr(), index->numel() * (index->dtype().bits / 8));
    if (!rows_meet(written.memory(), memory)) return;
    raise(
        "ValueError",
        {written.name, " shares memory with ", name, ", at ", location, ": ", written.name, " is ", written.tensor,
         ", ", name, " is ", *index, ". A call must not write to an index that it reads"});
  };
  const auto refuse_over_index = [&](const Rows& written, const Rows& indexed) {
    refuse_over(written, indexed.index, indexed.index_name);
    refuse_over(written, indexed.counts, indexed.counts_name);
  };
  const unsigned asks = roles.asks(), writes = roles.all_writes();
  const unsigned other_asks = other_roles.asks(), other_writes = other_roles.all_writes();
  for (int i = 0; i < num_operands; ++i) {
    const Rows& one = *operands[i];
    const bool writes_one = (writes >> i & 1) != 0;
    if ((asks >> i & 1) == 0 || (is_one && !writes_one)) continue;
    const auto memory = one.memory();
    for (int j = 0; j < num_operands; ++j) {
      const Rows& other = *others[j];
      const bool writes_other = (other_writes >> j & 1) != 0;
      if ((other_asks >> j & 1) == 0) continue;
      if (writes_one && (other.index != nullptr || other.counts != nullptr)) refuse_over_index(one, other);
      if (writes_other && !is_one && (one.index != nullptr || one.counts != nullptr)) refuse_over_index(other, one);
      if (!writes_one && !writes_other) continue;
      if (is_one && i == j) {
        if (rows_overlap(memory)) refuse(one, one);
        continue;
      }
      if (is_one && writes_other && j > i) continue;  // the pair comes again
      const auto of_other = other.memory();
      const bool is_in_place = is_one && !writes_other && !other.is_shared && other.index == nullptr &&
                               one.index == nullptr && of_other == memory;
      if (!is_in_place && rows_meet(of_other, memory)) refuse(one, other);
    }
  }
}

/// Refuses rows for an operand that no segment uses, as nobody checks them, unless their tensor is an operand in use.
inline void refuse_unchecked_rows(const SegmentRows& segment, const Roles& roles, unsigned used, int num_operands) {
  for (unsigned unused = (segment.bound | roles.uses_dtype) & ~used; unused != 0; unused &= unused - 1) {
    const int number = __builtin_ctz(unused);
    if ((segment.bound >> number & 1) == 0)
      throw Error("TypeError", "row program: uses the dtype of operand ", number, ", which was not passed");
    const Rows& rows = *segment.rows[number];
    bool is_checked = false;
    for (int i = 0; i < num_operands; ++i)
      is_checked |= (roles.asks() >> i & 1) != 0 && segment.rows[i]->tensor.data_ptr() == rows.tensor.data_ptr();
    if (is_checked && (roles.uses_dtype >> number & 1) == 0) continue;
    throw Error(
        "TypeError", "row program: ", rows.name, " was passed as operand ", number,
        ", which no segment reads or stores: take it out of SGL_OPERANDS, or pass rows of an operand that is used");
  }
}

SGL_INLINE void match_program(
    const SegmentRows* segments, const Roles* roles, int num_segments, int num_operands, ProgramPlan& plan,
    SegmentPlan* plans, DebugInfo location) {
  for (int i = 0; i < num_segments; ++i) {
    auto& segment = plans[i];
    match_segment(segments[i].rows, num_operands, segments[i].bound, i, roles[i], plan, segment, location);
    segment.inverse = segment.inner <= 1 ? 0 : ~std::uint64_t{0} / static_cast<std::uint64_t>(segment.inner) + 1;
    // A map of few elements: narrower vectors, down to 32 bits, are more threads, each of which is done sooner. So they
    // were measured while they fill no more than seven eighths of the chip.
    if (segment.is_map && num_segments == 1 && plan.device.device_type == kDLCUDA) {
      const auto chip = runtime::get_chip(plan.device.device_id, location);
      while (segment.elements * segment.narrow_bytes > 4 &&
             16 * segment.num_rows * div_ceil(segment.columns, segment.elements) <=
                 7LL * chip.num_sms * chip.threads_per_sm)
        segment.elements /= 2;
      segment.has_tail = segment.columns % segment.elements != 0;
    }
    segment.vectors = div_ceil(segment.columns, segment.elements);
    const bool divides = segment.is_map && segment.vectors > 1;
    plan.forms |= static_cast<std::uint64_t>((segment.is_map ? sgl::kIsMap : 0) | (segment.is_kept ? sgl::kKeeps : 0))
                  << 2 * i;
    segment.vector_inverse = divides ? ~std::uint64_t{0} / static_cast<std::uint64_t>(segment.vectors) + 1 : 0;
    if (segment.columns == 0 && roles[i].writes_value == 0) segment.num_rows = 0;
    plan.num_rows += segment.num_rows;
    plan.is_flat = plan.is_flat && segment.inner == 1;
    if (plan.kept < roles[i].kept) plan.kept = roles[i].kept;
  }
  for (int i = 0; i < num_segments; ++i) {
    refuse_unchecked_rows(segments[i], roles[i], plan.seen, num_operands);
    // A kernel does not store what has no index. So what is lacked has one in another segment.
    for (unsigned lacks = roles[i].lacks; lacks != 0; lacks &= lacks - 1)
      if ((sgl::four_bits(plan.places, __builtin_ctz(lacks)) & 3) == 0) refuse_missing(lacks, i);
  }
  for (int i = 1; i < num_segments; ++i) {
    for (int j = 0; j < i; ++j) {
      if (plans[j].num_rows > 0 && plans[i].num_rows > 0)
        refuse_meeting_rows(segments[j].rows, roles[j], segments[i].rows, roles[i], num_operands, location);
    }
  }
}

SGL_INLINE std::int64_t ProgramOnCpu::find(
    const TemplateArg& functor, int operands, int segments, const ProgramPlan& plan, const char* signature) {
  for (auto& known : m_known) {
    const auto function = __atomic_load_n(&known.function, __ATOMIC_ACQUIRE);
    if (function == 0) break;
    if (known.types == plan.types && known.places == plan.places) return function;
  }
  return m_load(functor, operands, segments, plan, signature);
}

SGL_INLINE std::int64_t ProgramOnCpu::m_load(
    const TemplateArg& functor, int operands, int segments, const ProgramPlan& plan, const char* signature) {
  Message symbol;
  symbol << "host::cpu::row_program<";
  symbol.append(functor.type, functor.type_size);
  symbol << ", " << operands << ", " << segments << ", " << plan.types << "u, " << plan.places << "u, " << plan.forms
         << "u>";
  const auto function = ask_core("sgljit.deferred", {m_family, m_file, symbol.c_str(), signature});
  ::pthread_mutex_lock(&m_mutex);
  for (auto& known : m_known) {
    if (known.function != 0) continue;
    known.types = plan.types;
    known.places = plan.places;
    __atomic_store_n(&known.function, function, __ATOMIC_RELEASE);
    break;
  }
  ::pthread_mutex_unlock(&m_mutex);
  return function;
}

}  // namespace host::details

SGL_INLINE void host::match_index(const Rows& rows) {
  details::match_index(rows, rows.tensor.device(), false, rows.location);
}

#endif  // SGL_BODIES

// A host part asks for the loop by its name, and compiles without it.
#if !defined(SGL_SEPARATE)
#include <sgl_kernel/cpu/row_program.h>
#endif

#endif
