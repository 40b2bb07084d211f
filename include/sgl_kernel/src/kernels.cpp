/// \file kernels.cpp
/// \brief The bodies of the headers that read arguments, find kernels and launch them; see impl/separate.h.

#include <sgl_kernel/rows.h>  // their bodies are in messages.cpp
#include <sgl_kernel/tensor.h>

#undef SGL_BODIES
#define SGL_BODIES 1
#include <sgl_kernel/export.h>
#include <sgl_kernel/variant.h>
