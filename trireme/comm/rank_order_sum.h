// Sums (or largest values) over ranks, one rank's block after the other's: whoever sums gets the same bits.
// 16-bit floats are summed in fp32 and rounded once.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme {

using Reduction = c10d::ReduceOp::RedOpType;  // SUM or MAX

// blocks [P, n] -> [n] of dtype `result`. Its buffers count as communication.
at::Tensor reduce_blocks(const at::Tensor& blocks, Reduction reduction, at::ScalarType result);

// Where the other ranks' memory can be read: no block is ever whole on this rank.
struct ReadableBlocks {
  int ranks = 1;
  int rank = 0;      // this one
  at::Tensor block;  // [n], this rank's
  // Elements [begin, begin + to.size(0)) of another rank's block, into `to`. Called by several threads at
  // once.
  std::function<void(int rank, int64_t begin, at::Tensor to)> read;
};
// `output` [n] may be `blocks.block` itself. Its buffers are read_sum_buffer_bytes (collectives_bytes.h).
void reduce_readable(const ReadableBlocks& blocks, Reduction reduction, const at::Tensor& output);

}  // namespace trireme
