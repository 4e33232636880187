#include "trireme/comm/rank_order_sum.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/comm/collectives_bytes.h"
#include "trireme/device/memory_account.h"

namespace trireme {
namespace {

// They share a piece of kSumPieceOnHost_elements. With more threads, each reads too little in a call.
constexpr int64_t kMostThreads = 8;
constexpr int64_t kLeastOfThread_elements = 32 * 1024;

at::ScalarType summed_in(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

int64_t most_of_piece(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? kSumPieceOnHost_elements : kSumPieceOnDevice_elements;
}

// result = a and b, which may be narrower. It may be a or b itself.
void reduce_into(at::Tensor& result, const at::Tensor& a, const at::Tensor& b, Reduction reduction) {
  if (reduction == c10d::ReduceOp::SUM)
    at::add_out(result, a, b);
  else
    at::maximum_out(result, a, b.to(a.scalar_type()));
}

// For one thread: a piece at a time is summed in `total`, and the other ranks' are read into `read`. Where
// blocks are 16-bit, `widened` has them in the sum's dtype.
struct PieceBuffers {
  at::Tensor total, read, widened;

  PieceBuffers(int64_t elements, const at::Tensor& block) {
    const at::ScalarType sum_in = summed_in(block.scalar_type());
    total = at::empty({elements}, block.options().dtype(sum_in));
    read = at::empty({elements}, block.options());
    if (sum_in != block.scalar_type()) widened = at::empty_like(total);
  }
  PieceBuffers narrow(int64_t begin, int64_t elements) const {
    PieceBuffers part = *this;
    for (at::Tensor* buffer : {&part.total, &part.read, &part.widened})
      if (buffer->defined()) *buffer = buffer->narrow(0, begin, elements);
    return part;
  }
};

void reduce_piece(const ReadableBlocks& blocks, Reduction reduction, const at::Tensor& output, int64_t begin,
                  PieceBuffers buffers) {
  const int64_t elements = buffers.total.size(0);
  at::Tensor result = output.narrow(0, begin, elements), sum;
  const bool rounds = result.scalar_type() != buffers.total.scalar_type();
  for (int rank = 0; rank < blocks.ranks; ++rank) {
    at::Tensor piece = rank == 0 && !buffers.widened.defined() ? buffers.total : buffers.read;
    if (rank == blocks.rank)
      piece = blocks.block.narrow(0, begin, elements);
    else
      blocks.read(rank, begin, piece);
    if (buffers.widened.defined()) piece = (rank == 0 ? buffers.total : buffers.widened).copy_(piece);
    if (rank == 0) {
      sum = piece;
      continue;
    }
    // The result may lie where this rank's block is, which has been added by the last rank's turn.
    at::Tensor& into = rank + 1 == blocks.ranks && !rounds ? result : buffers.total;
    reduce_into(into, sum, piece, reduction);
    sum = into;
  }
  if (!sum.is_same(result)) result.copy_(sum);
}

}  // namespace

at::Tensor reduce_blocks(const at::Tensor& blocks, Reduction reduction, at::ScalarType result) {
  const int64_t ranks = blocks.size(0), elements = blocks.size(1), most = most_of_piece(blocks);
  const at::ScalarType sum_in = summed_in(blocks.scalar_type());
  at::Tensor output = at::empty({elements}, blocks.options().dtype(result));
  const MemoryScope buffers(MemoryCategory::communication);
  for (int64_t begin = 0; begin < elements; begin += most) {
    const at::Tensor piece = blocks.narrow(1, begin, std::min(most, elements - begin));
    at::Tensor of_output = output.narrow(0, begin, piece.size(1));
    at::Tensor total =
        result == sum_in ? of_output : at::empty({piece.size(1)}, blocks.options().dtype(sum_in));
    total.copy_(piece[0]);
    for (int64_t rank = 1; rank < ranks; ++rank) reduce_into(total, total, piece[rank], reduction);
    if (result != sum_in) of_output.copy_(total);
  }
  return output;
}

void reduce_readable(const ReadableBlocks& blocks, Reduction reduction, const at::Tensor& output) {
  const int64_t elements = output.size(0);
  if (elements == 0) return;
  const bool on_host = output.device().is_cpu();
  const int64_t threads = std::min<int64_t>({on_host ? at::get_num_threads() : 1, kMostThreads,
                                             std::max<int64_t>(1, elements / kLeastOfThread_elements)});
  const int64_t most = std::min(most_of_piece(output), elements) / threads;
  const MemoryScope counted(MemoryCategory::communication);
  const PieceBuffers buffers(most * threads, blocks.block);
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    for (int64_t thread = first; thread < last; ++thread) {
      const int64_t end = elements * (thread + 1) / threads;
      for (int64_t begin = elements * thread / threads; begin < end; begin += most)
        reduce_piece(blocks, reduction, output, begin,
                     buffers.narrow(thread * most, std::min(most, end - begin)));
    }
  });
}

}  // namespace trireme
