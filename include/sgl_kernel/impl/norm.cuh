#pragma once

/// \file impl/norm.cuh
/// \brief Building blocks of normalisation, for kernels that are ported from SGLang. New code has `row.cuh`.

#include <sgl_kernel/compat/norm.cuh>
