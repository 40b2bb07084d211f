/// \file messages.cpp
/// \brief The bodies of the headers that take arguments apart, check them and report what is wrong; see
/// impl/separate.h.

#define SGL_BODIES 1
#include <sgl_kernel/export.h>
#include <sgl_kernel/tensor.h>
