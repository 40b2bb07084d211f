#pragma once

/// \file source_location.h
/// \brief `source_location_t`: the location of a call, with any compiler.
///
/// `std::source_location` if the compiler has it, else a class with the same four accessors built on the same
/// compiler builtins. Host only, and free at run time: it is a pointer to static data.

// nvcc up to 12.1 understands `consteval` but does not announce it, and libstdc++ then leaves the class out. Announce
// it for this one include; standard headers that do not need it are unaffected.
#if defined(__CUDACC_VER_MAJOR__) && !defined(__cpp_consteval) && \
    (__CUDACC_VER_MAJOR__ < 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ <= 1))
#define __cpp_consteval 201811L
#include <source_location>
#undef __cpp_consteval
#elif defined(__has_include)
#if __has_include(<source_location>)
#include <source_location>
#endif
#endif

#if defined(__cpp_lib_source_location)

using source_location_t = std::source_location;

#else

#include <cstdint>

/// \brief Stand-in for `std::source_location`, without the column.
struct source_location_t {
  static constexpr source_location_t current(
      const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
      std::uint_least32_t line = __builtin_LINE()) noexcept {
    source_location_t here;
    here.m_file = file;
    here.m_function = function;
    here.m_line = line;
    return here;
  }
  constexpr const char* file_name() const noexcept {
    return m_file;
  }
  constexpr const char* function_name() const noexcept {
    return m_function;
  }
  constexpr std::uint_least32_t line() const noexcept {
    return m_line;
  }
  constexpr std::uint_least32_t column() const noexcept {
    return 0;
  }

 private:
  const char* m_file = "";
  const char* m_function = "";
  std::uint_least32_t m_line = 0;
};

#endif
