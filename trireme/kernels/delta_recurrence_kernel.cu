// A block of 128 threads holds 16 columns of a head's state. Its products are all [rows, depth] x [depth, 16],
// the left matrix from global memory and the right one in shared memory: a thread has 4 columns of 4 rows, or
// of 2 where there are 64. The left matrix comes in stages of 16 of its depth, the next one on its way while one
// is multiplied; it lies transposed in shared memory, so that a thread reads its rows at once. Two
// stages take turns, so that one barrier each is enough.
#include "trireme/kernels/delta_recurrence_kernel.h"
#include "trireme/kernels/delta_rule_bytes.h"
#include "trireme/kernels/gpu_code.h"

namespace trireme {
namespace {

constexpr int kThreads = 128, kColumns = 16;
constexpr int kBlocks = 4;  // of a multiprocessor, by their registers; by shared memory 3 on sm_80
constexpr int kQuad = 4;    // columns of a thread, and values of an access
constexpr int kRowGroups = kThreads / (kColumns / kQuad);
constexpr int kC = kDeltaChunk_tokens;
constexpr int kStage = 16;
constexpr int kMostRows = kRowGroups * kQuad;    // of a product
constexpr int kStageStride = kMostRows + kQuad;  // 16 rows of two depths lie in 32 banks
constexpr int kKeyRows = kMostDeltaKeyWidth;     // whole products
static_assert(kMostRows == 2 * kC && kKeyRows % kMostRows == 0, "rows of products");

using Quad = Values<float, kQuad>;

struct Scratch {
  Shared<float, kKeyRows * kColumns> state;
  Shared<float, 2 * kC * kColumns> rows;  // R, or [dR; do]
  Shared<float, kC * kColumns> updates;   // U or dU
  Shared<float, 2 * kStage * kStageStride> stages;
};

// A left matrix: element (i, j) at data[i row_stride + j depth_stride], of which one stride is 1.
struct LeftMatrix {
  const float* data;
  int64_t row_stride, depth_stride;
  int rows, depth;
};

struct Block {
  int thread, first_row, quad;  // the thread's rows begin at R first_row; its columns in the block
  int64_t head, column;         // its columns in the head
  bool inside;                  // whether the head has them

  __device__ explicit Block(int64_t value_width) {
    const int64_t slices = (value_width + kColumns - 1) / kColumns;
    thread = static_cast<int>(threadIdx.x);
    first_row = thread / (kColumns / kQuad);
    quad = thread % (kColumns / kQuad) * kQuad;
    head = static_cast<int64_t>(blockIdx.x) / slices;
    column = static_cast<int64_t>(blockIdx.x) % slices * kColumns + quad;
    inside = column < value_width;
  }
  // The thread's columns of a row of the head, zeros where there are none.
  __device__ Quad load(const float* row) const { return inside ? load_global<kQuad>(row + column) : Quad{}; }
  __device__ void store(float* row, const Quad& values) const {
    if (inside) store_global(row + column, values);
  }
};

// A stage of rows [first, first + 32 R) and depths [begin, begin + kStage), R quads a thread: which, and where
// they go.
template <int R>
struct StageShare {
  int row[R], depth[R];
  bool by_rows;

  __device__ StageShare(int thread, const LeftMatrix& left) : by_rows(left.depth_stride == 1) {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int at = i * kThreads + thread;
      if (by_rows) {  // a warp: 16 rows of two quads, 32 bytes of each
        const int group = at / kWarp;
        row[i] = group / 2 * 16 + at % kWarp / 2;
        depth[i] = group % 2 * 2 * kQuad + at % 2 * kQuad;
      } else {
        row[i] = at % (kRowGroups * R / kQuad) * kQuad;
        depth[i] = at / (kRowGroups * R / kQuad);
      }
    }
  }
  __device__ void fetch(Quad (&held)[R], const LeftMatrix& left, int first, int begin) const {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int r = first + row[i], d = begin + depth[i];
      held[i] = r < left.rows && d < left.depth
                    ? load_global<kQuad>(left.data + r * left.row_stride + d * left.depth_stride)
                    : Quad{};
    }
  }
  __device__ void keep(const Quad (&held)[R], Scratch& scratch, int stage) const {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int at = (stage * kStage + depth[i]) * kStageStride + row[i];
      if (by_rows)
#pragma unroll
        for (int j = 0; j < kQuad; ++j) scratch.stages[at + j * kStageStride] = held[i].at[j];
      else
        scratch.stages.store<kQuad>(at, held[i]);
    }
  }
};

// The matrices of one chunk and head, which all lie in the order of chunks, then heads.
struct ChunkMatrices {
  int64_t index;
  LeftMatrix reads, writes, inverse;
  float last_carried;

  __device__ ChunkMatrices(const DeltaRecurrenceKernel& recurrence, int64_t chunk, int64_t head)
      : index(chunk * recurrence.heads + head) {
    const int64_t width = recurrence.key_width;
    const bool by_columns = recurrence.inverse_by_columns;
    reads = {recurrence.reads_nNCD + index * 2 * kC * width, width, 1, 2 * kC, static_cast<int>(width)};
    writes = {recurrence.writes_nNCD + index * kC * width, width, 1, kC, static_cast<int>(width)};
    inverse = {recurrence.inverse_nNCC + index * kC * kC, by_columns ? 1 : kC, by_columns ? kC : 1, kC, kC};
    last_carried = load_global(recurrence.carried_nNC + index * kC + kC - 1);
  }
};
__device__ inline LeftMatrix transposed(const LeftMatrix& x) {
  return {x.data, x.depth_stride, x.row_stride, x.depth, x.rows};
}

// A block's columns of a state, which all lie in scratch memory, with zeros beyond the last key row.
class StateColumns {
 public:
  __device__ StateColumns(const DeltaRecurrenceKernel& recurrence, const Block& block, Scratch& scratch)
      : recurrence_(recurrence), block_(block), scratch_(scratch) {
    const float* const from_DD = state_of(recurrence.state_NDD, block.head);
    each_row([&](int row, int at) {
      scratch_.state.store<kQuad>(
          at, row < recurrence_.key_width ? block_.load(from_DD + row * recurrence_.value_width) : Quad{});
    });
  }
  __device__ void finish() const { store(state_of(recurrence_.state_NDD, block_.head)); }
  // Of a chunk that is worked on next; the state is stored where those of chunks are asked for.
  __device__ ChunkMatrices begin(int64_t chunk) const {
    const ChunkMatrices matrices(recurrence_, chunk, block_.head);
    if (recurrence_.states_nNDD != nullptr) store(state_of(recurrence_.states_nNDD, matrices.index));
    return matrices;
  }

  // sums += rows [first, first + 32 R) of left x right, whose depth is that of left in whole stages, with zeros
  // beyond. All threads of the block. What they wrote to `right` before is seen.
  template <int R, int size>
  __device__ void multiply(Quad (&sums)[R], const LeftMatrix& left, Shared<float, size>& right,
                           int first = 0) {
    const StageShare<R> share(block_.thread, left);
    Quad held[R];
    share.fetch(held, left, first, 0);
    for (int begin = 0; begin < left.depth; begin += kStage) {
      share.keep(held, scratch_, stage_);
      if (begin + kStage < left.depth) share.fetch(held, left, first, begin + kStage);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kStage; ++d) {
        const Values<float, R> a =
            scratch_.stages.template load<R>((stage_ * kStage + d) * kStageStride + block_.first_row * R);
        const Quad b = right.template load<kQuad>((begin + d) * kColumns + block_.quad);
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
          for (int j = 0; j < kQuad; ++j) sums[i].at[j] = fmaf(a.at[i], b.at[j], sums[i].at[j]);
      }
      stage_ = 1 - stage_;
    }
  }

  // state = kept state + left right
  template <int size>
  __device__ void move(float kept, const LeftMatrix& left, Shared<float, size>& right) {
    for (int first = 0; first < recurrence_.key_width; first += kMostRows) {
      Quad sums[kQuad];
      const int row = first + block_.first_row * kQuad;
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        sums[i] = scratch_.state.load<kQuad>((row + i) * kColumns + block_.quad);
#pragma unroll
        for (int j = 0; j < kQuad; ++j) sums[i].at[j] *= kept;
      }
      multiply<kQuad>(sums, left, right, first);
#pragma unroll
      for (int i = 0; i < kQuad; ++i)
        scratch_.state.store<kQuad>((row + i) * kColumns + block_.quad, sums[i]);
    }
  }

 private:
  __device__ float* state_of(float* states_DD, int64_t index) const {
    return states_DD + index * recurrence_.key_width * recurrence_.value_width;
  }
  // body(key row, where its columns lie in scratch memory) for the thread's rows of each product.
  template <typename F>
  __device__ void each_row(const F& body) const {
    for (int first = 0; first < recurrence_.key_width; first += kMostRows)
      for (int i = 0; i < kQuad; ++i) {
        const int row = first + block_.first_row * kQuad + i;
        body(row, row * kColumns + block_.quad);
      }
  }
  __device__ void store(float* to_DD) const {
    each_row([&](int row, int at) {
      if (row < recurrence_.key_width)
        block_.store(to_DD + row * recurrence_.value_width, scratch_.state.load<kQuad>(at));
    });
  }

  const DeltaRecurrenceKernel& recurrence_;
  const Block& block_;
  Scratch& scratch_;
  int stage_ = 0;  // of the two, the one that is written next
};

// R rows a thread: 4 of [R; o], 2 of R, which are the first of what is read.
template <int R>
__global__ void __launch_bounds__(kThreads, kBlocks)
    delta_forwards(DeltaRecurrenceKernel recurrence, float* rows_nNRD, float* updates_nNCD) {
  __shared__ Scratch scratch;
  const Block block(recurrence.value_width);
  StateColumns state(recurrence, block, scratch);
  const int64_t width = recurrence.value_width;
  for (int64_t chunk = 0; chunk < recurrence.chunks; ++chunk) {
    const ChunkMatrices matrices = state.begin(chunk);
    float* const rows = rows_nNRD + matrices.index * kRowGroups * R * width;
    Quad sums[R];
#pragma unroll
    for (int i = 0; i < R; ++i) sums[i] = block.load(rows + (block.first_row * R + i) * width);
    state.multiply<R>(sums, matrices.reads, scratch.state);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int row = block.first_row * R + i;
      if (row < kC)
        scratch.rows.store<kQuad>(row * kColumns + block.quad, sums[i]);
      else
        block.store(rows + row * width, sums[i]);
    }

    Quad updates[2] = {};
    state.multiply<2>(updates, matrices.inverse, scratch.rows);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = block.first_row * 2 + i;
      scratch.updates.store<kQuad>(row * kColumns + block.quad, updates[i]);
      block.store(updates_nNCD + (matrices.index * kC + row) * width, updates[i]);
    }
    state.move(matrices.last_carried, transposed(matrices.writes), scratch.updates);
  }
  state.finish();
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    delta_backwards(DeltaRecurrenceKernel recurrence, const float* d_updates_nNCD, float* d_both_nNCD) {
  __shared__ Scratch scratch;
  const Block block(recurrence.value_width);
  StateColumns state(recurrence, block, scratch);
  const int64_t width = recurrence.value_width;
  const auto row_of = [&](int i) { return block.first_row * 2 + i; };
  for (int64_t chunk = recurrence.chunks - 1; chunk >= 0; --chunk) {
    const ChunkMatrices matrices = state.begin(chunk);
    Quad sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      sums[i] = block.load(d_updates_nNCD + (matrices.index * kC + row_of(i)) * width);
    state.multiply<2>(sums, matrices.writes, scratch.state);
#pragma unroll
    for (int i = 0; i < 2; ++i) scratch.updates.store<kQuad>(row_of(i) * kColumns + block.quad, sums[i]);

    float* const both = d_both_nNCD + matrices.index * 2 * kC * width;
    Quad d_rows[2] = {}, d_outputs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) d_outputs[i] = block.load(both + (kC + row_of(i)) * width);
    state.multiply<2>(d_rows, transposed(matrices.inverse), scratch.updates);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scratch.rows.store<kQuad>(row_of(i) * kColumns + block.quad, d_rows[i]);
      scratch.rows.store<kQuad>((kC + row_of(i)) * kColumns + block.quad, d_outputs[i]);
      block.store(both + row_of(i) * width, d_rows[i]);
    }
    state.move(matrices.last_carried, transposed(matrices.reads), scratch.rows);
  }
  state.finish();
}

LaunchSize size_of(const DeltaRecurrenceKernel& recurrence) {
  return {recurrence.heads * ((recurrence.value_width + kColumns - 1) / kColumns), kThreads};
}

}  // namespace

void launch_delta_forwards(const DeltaRecurrenceKernel& recurrence, DeltaOutputs outputs, float* rows_nNRD,
                           float* updates_nNCD, void* stream) {
  launch(outputs == DeltaOutputs::computed ? delta_forwards<4> : delta_forwards<2>, size_of(recurrence),
         stream, recurrence, rows_nNRD, updates_nNCD);
}

void launch_delta_backwards(const DeltaRecurrenceKernel& recurrence, const float* d_updates_nNCD,
                            float* d_both_nNCD, void* stream) {
  launch(delta_backwards, size_of(recurrence), stream, recurrence, d_updates_nNCD, d_both_nNCD);
}

}  // namespace trireme
