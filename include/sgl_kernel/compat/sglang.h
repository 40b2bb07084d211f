#pragma once

/// \file compat/sglang.h
/// \brief The names of SGLang's JIT headers (0.5.7 to 0.5.23) that the other headers lack, so that a kernel that is
/// written to them compiles as it is.
///
/// `load_jit` includes it before the files of a module if one of them names `tvm::ffi::` or `sglang`; no other build
/// sees it. What is here serves ports alone: new code has the names of the other headers.

#define SGL_COMPAT 1

#include <sgl_kernel/compat/tvm_ffi.h>
// In this order.
#include <sgl_kernel/compat/host.h>
#if SGL_COMPAT_DEVICE
#include <sgl_kernel/compat/device.cuh>
// In this order.
#include <sgl_kernel/compat/runtime.cuh>
#endif
#include <sgl_kernel/compat/namespaces.h>
