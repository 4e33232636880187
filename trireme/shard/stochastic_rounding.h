// fp32 -> bf16 by stochastic rounding: a value between two neighbours becomes the upper one with probability
// (value - lower) / (upper - lower). So small updates of a bf16 state are kept on average, where rounding to
// nearest would lose them all (arXiv 1502.02551).
//
//   key      = splitmix64(splitmix64(seed) ^ stream)
//   h_g      = splitmix64(key + g * kSplitmix64Step)                  g = i / 4
//   r_i      = bits [16 (i % 4), 16 (i % 4) + 16) of h_g             i = first_element + offset in tensor
//   bf16_i   = upper half of (bits of fp32_i + r_i)
//
// The random bits of an element depend on (seed, stream, i) alone: not on threads, the device, or how a state
// is cut into shards.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

// from fp32, to bf16: contiguous, equally many elements, one device. to[0] is element `first_element` of the
// state. Values that bf16 has, infinities and NaN stay as they are; a finite value stays finite. Each
// rounding of a state needs another `stream` (its tensor and the step). Not collective. Throws InternalError
// when the tensors do not agree.
void round_stochastically(const at::Tensor& from_fp32, at::Tensor& to_bf16, uint64_t seed, uint64_t stream,
                          int64_t first_element = 0);

// The ATen version, for any device. On the CPU the function above runs in vectors on all threads, to the same
// bits.
namespace aten {
void round_stochastically(const at::Tensor& from_fp32, at::Tensor& to_bf16, uint64_t seed, uint64_t stream,
                          int64_t first_element = 0);
}  // namespace aten

}  // namespace trireme
