#pragma once

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>

/// \file cpu/parallel.h
/// \brief A parallel loop for inputs that are large enough to pay for starting threads.
///
/// Threads start with the loop and end with it, which makes the loop safe in any library: no thread outlives a call, so
/// the process can fork and the library can be unloaded; libraries share nothing; an idle process has no spinning
/// threads. A pool would save some 10 us a thread. `<thread>` is not included, because it takes 0.4 s to compile.
///
/// A loop uses at most as many threads as the calling thread has processors (its affinity mask: taskset and container
/// CPU sets count), and at most `OMP_NUM_THREADS`, read once per process, if that is a positive number.
/// With `SGLJIT_SPLIT_ALWAYS=1`, read once per process, three threads share every input of more than one item: a test
/// sees what a kernel does at the ends of ranges.

namespace host::cpu {

namespace details {

inline constexpr std::int64_t kMaxThreads = 256;

/// The stack of a thread that is started: the C library keeps 40 MB of stacks for later threads, which is five of the
/// default's 8 MB. To map others takes most of the time of a start.
inline constexpr std::size_t kStackBytes = 512 << 10;

/// Processors that the calling thread may use.
inline std::int64_t available_processors() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return sysconf(_SC_NPROCESSORS_ONLN);  // not Linux, or more processors than a cpu_set_t holds
}

/// The limit that OMP_NUM_THREADS sets; the first number of a list for nested regions, such as "8,2".
inline std::int64_t requested_threads() {
  static const std::int64_t limit = [] {
    const char* text = std::getenv("OMP_NUM_THREADS");
    const std::int64_t value = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
    return value > 0 ? value : kMaxThreads;
  }();
  return limit;
}

/// Whether SGLJIT_SPLIT_ALWAYS is 1: a test of a kernel splits small inputs, too.
inline bool splits_always() {
  static const bool value = [] {
    const char* text = std::getenv("SGLJIT_SPLIT_ALWAYS");
    return text != nullptr && text[0] == '1' && text[1] == '\0';
  }();
  return value;
}

}  // namespace details

/// \brief Calls `body(begin, end)` on disjoint ranges that together make [0, total), on several threads if there is
/// enough work, and returns when all ranges are done.
///
/// \param total number of items; with none, `body` is not called.
/// \param grain the number of items, at least 1, that is worth a thread: 50 to 100 us of work, since starting one takes
///   about 20. Below two grains the caller does all items in one call, at no further cost.
/// \param body may be called by several threads at once, with a stack of 512 KiB. Threads take ranges as they become
///   free, so that a descheduled thread does not delay the rest.
/// \throws the first exception of `body`, in the calling thread, once every thread has ended, so that none still uses
///   the caller's data. Calls that had begun elsewhere run to their end; ranges that had not begun are left out.
template <typename Body>
void parallel_for(std::int64_t total, std::int64_t grain, const Body& body) {
  const auto smaller = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
  if (total <= 0) return;
  const bool splits_always = details::splits_always();
  auto num_threads = smaller(splits_always ? total : total / grain, splits_always ? 3 : details::kMaxThreads);
  if (num_threads > 1 && !splits_always) num_threads = smaller(num_threads, details::requested_threads());
  if (num_threads > 1 && !splits_always) num_threads = smaller(num_threads, details::available_processors());
  if (num_threads <= 1) return body(std::int64_t{0}, total);

  struct Job {
    const Body& body;
    std::int64_t total;
    std::int64_t piece;
    std::int64_t next = 0;
    bool has_failed = false;
    std::exception_ptr error = nullptr;  // written by the thread that sets has_failed, read when all have been joined

    static void* run(void* self) {
      auto& job = *static_cast<Job*>(self);
      try {
        job.work();
      } catch (...) {  // an exception that leaves a thread's function calls std::terminate
        if (!__atomic_exchange_n(&job.has_failed, true, __ATOMIC_RELAXED)) job.error = std::current_exception();
        __atomic_store_n(&job.next, job.total, __ATOMIC_RELAXED);
      }
      return nullptr;
    }

    void work() {
      while (true) {
        const auto begin = __atomic_fetch_add(&next, piece, __ATOMIC_RELAXED);
        if (begin >= total) return;
        const auto left = total - begin;
        body(begin, begin + (left < piece ? left : piece));
      }
    }
  };
  constexpr std::int64_t kPiecesPerThread = 4;
  const auto num_pieces = num_threads * kPiecesPerThread;
  Job job{body, total, (total + num_pieces - 1) / num_pieces};

  pthread_t workers[details::kMaxThreads];
  std::int64_t started = 0;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, details::kStackBytes);
  // A small stack is refused where thread-local variables of the process do not fit into it. If the system refuses a
  // thread, the running ones do its part.
  const auto starts = [&](const pthread_attr_t* with) {
    return pthread_create(&workers[started], with, Job::run, &job) == 0;
  };
  while (started < num_threads - 1 && (starts(&attributes) || starts(nullptr))) ++started;
  pthread_attr_destroy(&attributes);
  Job::run(&job);
  for (std::int64_t i = 0; i < started; ++i) pthread_join(workers[i], nullptr);
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace host::cpu
