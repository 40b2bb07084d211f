#pragma once

/// \file separate.h
/// \brief Where the functions of the host headers are compiled that nobody needs inline: in each unit that includes
/// them, or once.
///
/// A header declares such functions as `SGL_INLINE` and has their bodies at its end, where `SGL_BODIES` is 1. That is
/// the case everywhere, unless `SGL_SEPARATE` is defined: the core does so when it compiles a host part
/// (`KernelFamily.load_host`) or a module with CUDA files, and adds the units of `sgl_kernel/src`, each of which has
/// the bodies of some headers. They take a compiler as long as a host part does, and are compiled side by side with it.

#if !defined(SGL_SEPARATE)
#define SGL_INLINE inline
#define SGL_BODIES 1
#else
#define SGL_INLINE
#if !defined(SGL_BODIES)
#define SGL_BODIES 0
#endif
#endif
