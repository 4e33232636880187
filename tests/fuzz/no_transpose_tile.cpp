// The programs hold the arithmetic and never run it, and Clang lacks a builtin of transpose_tile.cpp.
#include "trireme/kernels/transpose_tile.h"

namespace trireme::simd_base {
extern const TransposeTile kTransposeTile = {};
}
namespace trireme::simd_v3 {
extern const TransposeTile kTransposeTile = {};
}
namespace trireme::simd_v4 {
extern const TransposeTile kTransposeTile = {};
}
