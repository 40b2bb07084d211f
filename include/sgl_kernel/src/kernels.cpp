/// \file kernels.cpp
/// \brief The bodies of the headers that find kernels and launch them; see impl/separate.h.

#include <sgl_kernel/export.h>
#include <sgl_kernel/tensor.h>  // these are in messages.cpp

#undef SGL_BODIES
#define SGL_BODIES 1
#include <sgl_kernel/variant.h>
