#pragma once

/// \file mbarrier.cuh
/// \brief Barriers in shared memory by SGLang's names, for ports: new code has `ptx.cuh`.

#include <sgl_kernel/compat/sglang.h>
