#pragma once

#include <sgl_kernel/ffi.h>
#include <sgl_kernel/impl/separate.h>
#include <sgl_kernel/utils.h>

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <initializer_list>

/// \file family.h
/// \brief Requests of a host part to the core for code that is made on demand. Used by variant.h and deferred.h.

// The family that the files belong to. KernelFamily.load_host defines it.
#if !defined(SGL_FAMILY)
#define SGL_FAMILY ""
#endif

namespace host::details {

/// Call a global function of the core with strings and, if it is not negative, a device; returns an address. A Python
/// exception passes through this module unchanged.
[[gnu::cold]] SGL_INLINE std::int64_t ask_core(
    const char* question, std::initializer_list<const char*> texts, std::int32_t device_id = -1);

}  // namespace host::details

#if SGL_BODIES

#include <cstddef>
#include <cstring>

SGL_INLINE std::int64_t host::details::ask_core(
    const char* question, std::initializer_list<const char*> texts, std::int32_t device_id) {
  constexpr std::size_t kMaxTexts = 4;
  const TVMFFIByteArray name = {question, std::strlen(question)};
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionGetGlobal(&name, &function) != 0) throw RaisedError{};
  RuntimeCheck(
      function != nullptr, "there is no global function ", question,
      ": load this library, a host part, with KernelFamily.load_host of sgljit_core");
  TVMFFIAny args[kMaxTexts + 1] = {};
  std::int32_t count = 0;
  for (const char* text : texts) {
    args[count].type_index = kTVMFFIRawStr;
    args[count++].v_c_str = text;
  }
  if (device_id >= 0) {
    args[count].type_index = kTVMFFIInt;
    args[count++].v_int64 = device_id;
  }
  TVMFFIAny result = {};
  const int status = TVMFFIFunctionCall(function, args, count, &result);
  TVMFFIObjectDecRef(function);
  if (status != 0) throw RaisedError{};
  return result.v_int64;
}

#endif  // SGL_BODIES
