#pragma once

/// \file impl/word.h
/// \brief The width of loads and stores on which both sides of a launch agree. Read by every compiler.

namespace sgl {

/// \brief Bytes of the widest load or store that a host part asks a kernel for.
///
/// A host part is compiled before its kernels, and does not know by which compiler these will be: only what every
/// compiler moves at once, for every device, may be asked for. A kernel that could move more, as on Blackwell with CUDA
/// 13, decides so itself, by `device::kMaxVecBytes`.
enum : unsigned { kWordBytes = 16 };

}  // namespace sgl
