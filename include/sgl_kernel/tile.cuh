#pragma once

/// \file tile.cuh
/// \brief `tile::Memory`, for kernels that are ported from SGLang. New code has `row.cuh`.

#include <sgl_kernel/compat/tile.cuh>
