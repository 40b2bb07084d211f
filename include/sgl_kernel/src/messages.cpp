/// \file messages.cpp
/// \brief The bodies of the headers that check arguments and report errors; see impl/separate.h.

#define SGL_BODIES 1
#include <sgl_kernel/rows.h>
#include <sgl_kernel/tensor.h>
