#pragma once

/// \file impl/separate.h
/// \brief Compiles the host headers' functions that need no inlining in each unit that includes them, or only once.
///
/// A header declares such functions as `SGL_INLINE` and has their bodies at its end, if `SGL_BODIES` is 1. That is the
/// default. The core defines `SGL_SEPARATE` when it compiles a host part (`KernelFamily.load_host`) or a module with
/// CUDA files: then only the units of `sgl_kernel/src` have the bodies, each those of some headers. They take as long
/// to compile as a host part, and are compiled side by side with it.

#if !defined(SGL_SEPARATE)
#define SGL_INLINE inline
#define SGL_BODIES 1
#else
#define SGL_INLINE
#if !defined(SGL_BODIES)
#define SGL_BODIES 0
#endif
#endif
