// What test_cpu.py calls.

#include <sgl_kernel/cpu/elements.h>
#include <sgl_kernel/cpu/half.h>
#include <sgl_kernel/cpu/isa.h>
#include <sgl_kernel/cpu/parallel.h>
#include <sgl_kernel/export.h>
#include <sgl_kernel/functor.h>
#include <sgl_kernel/tensor.h>

namespace {

using namespace host::cpu;

/// Calls `body` in the version for vectors of `floats`, or in the widest one for 0.
template <typename Body>
void with_vectors(std::int64_t floats, const Body& body) {
#if defined(__x86_64__)
  if (floats == 8) return details::run_avx2(body);
#endif
  if (floats == 4) return details::run<4>(body);
  with_widest_vectors(body);
}

/// out[i] = the `Out` that in[i] rounds to, or the float that in[i] stands for, as the loops of row operations do it.
/// \tparam kLeast how many an iteration takes at least; their number is a multiple of it.
template <typename Out, typename In, int kLeast = 1>
void convert(host::TensorView in, host::TensorView out, std::int64_t floats) {
  auto N = host::SymbolicSize{"N"};
  host::TensorMatcher({N}).template with_dtype<In>().template with_device<kDLCPU>().verify(in);
  host::TensorMatcher({N}).template with_dtype<Out>().template with_device<kDLCPU>().verify(out);
  const auto* from = static_cast<const In*>(in.data_ptr());
  auto* to = static_cast<Out*>(out.data_ptr());
  const auto count = N.unwrap();
  with_vectors(floats, [=](auto vectors) __attribute__((always_inline)) {
    for_each_chunk<In, Out>(
        vectors, count,
        [=]<int kFloats>(Vectors<kFloats>, std::int64_t first, std::int64_t length) __attribute__((always_inline)) {
          InputChunk<In, kFloats> x;
          OutputChunk<Out, kFloats> y;
          x.load(from + first, length);
          y.begin(to + first);
          constexpr int kCount = kLeast > 1 ? kLeast : kTogether<In, Out, kFloats>;
          for (std::int64_t i = 0; i < length / kCount; ++i) {
            float floats[kCount];
            x.get(i, floats);
            y.set(i, floats);
          }
          y.store(length);
        });
  });
}

/// out[i] = F{}(in[i]), vectorised as in the loops of row operations.
template <typename F>
void apply(host::TensorView in, host::TensorView out) {
  const auto* from = static_cast<const float*>(in.data_ptr());
  auto* to = static_cast<float*>(out.data_ptr());
  const auto count = in.numel();
  with_widest_vectors([=]() __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = F{}(from[i]);
  });
}
struct Exp {
  SGL_HD float operator()(float x) const {
    return sgl::exp(x);
  }
};
struct Erfc {
  SGL_HD float operator()(float x) const {
    return sgl::erfc(x);
  }
};

/// Copies bytes past the caches.
void streamed(host::TensorView from, host::TensorView to, std::int64_t floats) {
  with_vectors(floats, [&]<int kFloats>(Vectors<kFloats>) __attribute__((always_inline)) {
    stream<kFloats>(to.data_ptr(), from.data_ptr(), from.numel());
  });
  end_streams();
}

/// Adds one to every item that a range visits, and notes the thread that did.
void visit(host::TensorView visits, host::TensorView threads, std::int64_t grain) {
  auto* count = static_cast<std::int32_t*>(visits.data_ptr());
  auto* thread = static_cast<std::int64_t*>(threads.data_ptr());
  parallel_for(visits.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      count[i] += 1;
      thread[i] = static_cast<std::int64_t>(pthread_self());
    }
  });
}

/// Throws at the item `bad`, or at each where that is -1, and counts the others.
void visit_but(host::TensorView visits, std::int64_t grain, std::int64_t bad) {
  auto* count = static_cast<std::int32_t*>(visits.data_ptr());
  parallel_for(visits.numel(), grain, [=](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      if (bad == -1 || bad == i) throw host::Error("ValueError", "item ", i, " is bad");
      count[i] += 1;
    }
  });
}

/// Throws in a thread that the loop has started; the caller waits for it in the midst of its own range.
void throw_elsewhere(std::int64_t total) {
  const auto caller = pthread_self();
  bool thrown = false;
  parallel_for(total, 1, [&](std::int64_t, std::int64_t) {
    if (pthread_equal(pthread_self(), caller)) {
      while (!__atomic_load_n(&thrown, __ATOMIC_ACQUIRE)) sched_yield();
      return;
    }
    __atomic_store_n(&thrown, true, __ATOMIC_RELEASE);
    throw std::bad_alloc();
  });
}

}  // namespace

SGL_EXPORT(float_to_fp16, (convert<fp16_t, float>));
SGL_EXPORT(float_to_bf16, (convert<bf16_t, float>));
SGL_EXPORT(float_to_e4m3, (convert<fp8_e4m3_t, float>));
SGL_EXPORT(float_to_e5m2, (convert<fp8_e5m2_t, float>));
SGL_EXPORT(float_to_bf16_by_twos, (convert<bf16_t, float, 2>));
SGL_EXPORT(float_to_e4m3_by_twos, (convert<fp8_e4m3_t, float, 2>));
SGL_EXPORT(float_to_e5m2_by_twos, (convert<fp8_e5m2_t, float, 2>));
SGL_EXPORT(bf16_to_bf16, (convert<bf16_t, bf16_t>));
SGL_EXPORT(fp16_to_float, (convert<float, fp16_t>));
SGL_EXPORT(bf16_to_float, (convert<float, bf16_t>));
SGL_EXPORT(exp, (apply<Exp>));
SGL_EXPORT(erfc, (apply<Erfc>));
SGL_EXPORT(streamed, (streamed));
SGL_EXPORT(visit, (visit));
SGL_EXPORT(visit_but, (visit_but));
SGL_EXPORT(throw_elsewhere, (throw_elsewhere));
