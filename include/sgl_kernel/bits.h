#pragma once

/// \file bits.h
/// \brief Powers of two, for ports: new code has `<bit>`.

#include <sgl_kernel/compat/host.h>
