/// \file programs.cpp
/// \brief The bodies of row_program.h; see impl/separate.h. They take as long as all of kernels.cpp.

#include <sgl_kernel/dtype.h>  // the bodies of these are in the other units
#include <sgl_kernel/rows.h>
#include <sgl_kernel/variant.h>

#undef SGL_BODIES
#define SGL_BODIES 1
#include <sgl_kernel/row_program.h>
