// The delta rule's kernel of GPUs, played on the host with what a call gives it, beside ATen's products of the
// same segment in fp64.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/delta_recurrence.h"

#include "tests/kernels/played_gpu.h"
#include "tests/support/relative_error.h"

namespace trireme::played_delta_recurrence_test {
namespace {

using played::Gpu;
using testing::relative_error;

constexpr int64_t kC = kDeltaChunk_tokens;

struct Widths {
  int64_t key = 0, value = 0;
};

// A segment of random matrices, of the sizes that real ones have.
DeltaSegment random_segment(int64_t chunks, int64_t heads, int64_t key_width, bool inverse_by_columns) {
  DeltaSegment s;
  s.chunks = chunks;
  s.carried_nBVC1 = at::rand({chunks, 1, heads, kC, 1});
  s.reads_nNCD = at::randn({chunks, heads, 2 * kC, key_width}) / std::sqrt(static_cast<double>(key_width));
  s.writes_nNCD = at::randn({chunks, heads, kC, key_width}) / std::sqrt(static_cast<double>(kC));
  s.inverse_nBVCC = (at::randn({chunks, 1, heads, kC, kC}) / 8).tril(-1) + at::eye(kC);
  if (inverse_by_columns) s.inverse_nBVCC = s.inverse_nBVCC.mT().contiguous().mT();
  return s;
}

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}
DeltaSegment wide(const DeltaSegment& s) {
  DeltaSegment w;
  w.chunks = s.chunks;
  w.carried_nBVC1 = wide(s.carried_nBVC1);
  w.reads_nNCD = wide(s.reads_nNCD);
  w.writes_nNCD = wide(s.writes_nNCD);
  w.inverse_nBVCC = wide(s.inverse_nBVCC);
  return w;
}

// Tensors of the host, whose copies on a played GPU a kernel gets in their place.
class OnGpu {
 public:
  float* operator()(const at::Tensor& x) {
    return static_cast<float*>(gpu_.copied(delta_kernel_data(x), x.numel(), sizeof(float)));
  }
  float* unwritten(const at::Tensor& x) {
    return static_cast<float*>(gpu_.allocate(x.numel(), sizeof(float)));
  }
  at::Tensor back(const float* address, const at::Tensor& like) const {
    at::Tensor x = at::empty(like.sizes());
    gpu_.copy_out(address, x.mutable_data_ptr<float>());
    return x;
  }
  DeltaRecurrenceKernel kernel_of(const DeltaSegment& s, const at::Tensor& state, const at::Tensor& states) {
    DeltaRecurrenceKernel kernel = delta_kernel_of(s, state, states);
    kernel.reads_nNCD = (*this)(s.reads_nNCD);
    kernel.writes_nNCD = (*this)(s.writes_nNCD);
    kernel.inverse_nNCC = (*this)(kernel.inverse_by_columns ? s.inverse_nBVCC.mT() : s.inverse_nBVCC);
    kernel.carried_nNC = (*this)(s.carried_nBVC1);
    kernel.state_NDD = (*this)(state);
    if (states.defined()) kernel.states_nNDD = unwritten(states);
    return kernel;
  }
  const played::Counts& counts() const { return gpu_.counts(); }

 private:
  Gpu gpu_;
};

void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_LT(relative_error(got, expected), 2e-6);
}

struct Sizes {
  int64_t chunks, heads;
  Widths widths;
  bool inverse_by_columns;
};
class DeltaRecurrence : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override { at::manual_seed(11); }
  int64_t chunks() const { return GetParam().chunks; }
  int64_t heads() const { return GetParam().heads; }
  Widths widths() const { return GetParam().widths; }
  at::Tensor rows(int64_t count) const { return at::randn({chunks(), heads(), count, widths().value}); }
  at::Tensor state() const { return at::randn({heads(), widths().key, widths().value}); }
  at::Tensor states() const { return at::zeros({chunks(), heads(), widths().key, widths().value}); }
  DeltaSegment segment() const {
    return random_segment(chunks(), heads(), widths().key, GetParam().inverse_by_columns);
  }
};

TEST_P(DeltaRecurrence, forwards_gives_outputs_updates_and_the_state_behind) {
  const DeltaSegment s = segment();
  const at::Tensor before = rows(2 * kC), state_before = state();
  const at::Tensor both = wide(before), updates = wide(rows(kC)), after = wide(state_before);
  delta_forwards(wide(s), both, updates, after, {});
  OnGpu gpu;
  const DeltaRecurrenceKernel kernel = gpu.kernel_of(s, state_before, {});
  float *on_gpu = gpu(before), *updates_on_gpu = gpu.unwritten(updates);
  launch_delta_forwards(kernel, DeltaOutputs::computed, on_gpu, updates_on_gpu, nullptr);
  expect_equal(gpu.back(on_gpu, both).narrow(2, kC, kC), both.narrow(2, kC, kC));
  expect_equal(gpu.back(updates_on_gpu, updates), updates);
  expect_equal(gpu.back(kernel.state_NDD, after), after);
}

TEST_P(DeltaRecurrence, forwards_of_backward_keeps_the_state_of_each_chunk) {
  const DeltaSegment s = segment();
  const at::Tensor before = rows(kC), state_before = state(), kept = wide(states());
  const at::Tensor updates = wide(before);
  delta_forwards(wide(s), wide(before), updates, wide(state_before), kept);
  OnGpu gpu;
  const DeltaRecurrenceKernel kernel = gpu.kernel_of(s, state_before, states());
  float* updates_on_gpu = gpu.unwritten(updates);
  launch_delta_forwards(kernel, DeltaOutputs::left, gpu(before), updates_on_gpu, nullptr);
  expect_equal(gpu.back(updates_on_gpu, updates), updates);
  expect_equal(gpu.back(kernel.states_nNDD, kept), kept);
}

TEST_P(DeltaRecurrence, backwards_gives_the_gradients_of_rows_and_of_each_state) {
  const DeltaSegment s = segment();
  const at::Tensor d_updates = rows(kC), before = rows(2 * kC), d_state_before = state();
  const at::Tensor both = wide(before), d_state = wide(d_state_before), kept = wide(states());
  delta_backwards(wide(s), wide(d_updates), both, d_state, kept);
  OnGpu gpu;
  const DeltaRecurrenceKernel kernel = gpu.kernel_of(s, d_state_before, states());
  float* on_gpu = gpu(before);
  launch_delta_backwards(kernel, gpu(d_updates), on_gpu, nullptr);
  expect_equal(gpu.back(on_gpu, both), both);
  expect_equal(gpu.back(kernel.states_nNDD, kept), kept);
  expect_equal(gpu.back(kernel.state_NDD, d_state), d_state);
}

INSTANTIATE_TEST_SUITE_P(OfWidths, DeltaRecurrence,
                         ::testing::Values(Sizes{3, 2, {16, 16}, false}, Sizes{2, 1, {20, 24}, true},
                                           Sizes{1, 3, {4, 4}, true}, Sizes{2, 1, {128, 20}, true},
                                           Sizes{2, 1, {136, 16}, false}, Sizes{1, 1, {256, 8}, true}),
                         [](const auto& of) {
                           return std::to_string(of.param.chunks) + "_chunks_of_" +
                                  std::to_string(of.param.heads) + "_heads_" +
                                  std::to_string(of.param.widths.key) + "_by_" +
                                  std::to_string(of.param.widths.value);
                         });

// What the operators of ATen read and write: operands of each product, its result both ways.
TEST(PlayedDeltaRecurrence, reads_each_matrix_from_memory_once_and_writes_results_once) {
  at::manual_seed(12);
  constexpr int64_t n = 3, N = 2, D = 32;
  const DeltaSegment s = random_segment(n, N, D, true);
  OnGpu gpu;
  const at::Tensor both = at::randn({n, N, 2 * kC, D}), updates = at::empty({n, N, kC, D}),
                   state = at::randn({N, D, D});
  const DeltaRecurrenceKernel kernel = gpu.kernel_of(s, state, {});
  launch_delta_forwards(kernel, DeltaOutputs::computed, gpu(both), gpu.unwritten(updates), nullptr);
  const int64_t matrices = n * N * (3 * kC * D + kC * kC + 1);
  EXPECT_EQ(gpu.counts().launches, 1);
  EXPECT_EQ(gpu.counts().distinct_read_bytes, 4 * (matrices + both.numel() + state.numel()));
  EXPECT_EQ(gpu.counts().distinct_written_bytes, 4 * (both.numel() / 2 + updates.numel() + state.numel()));
  // Each block of 16 columns reads the matrices for itself.
  EXPECT_EQ(gpu.counts().read_bytes,
            4 * (D / 16 * n * N * (3 * kC * D + kC * kC) + both.numel() + state.numel()) +
                4 * D / 16 * n * N * 128);
}

TEST(PlayedDeltaRecurrence, knows_widths_in_fours_up_to_256_of_keys) {
  EXPECT_TRUE(knows_delta_widths(128, 128) && knows_delta_widths(256, 512) && knows_delta_widths(4, 4));
  EXPECT_FALSE(knows_delta_widths(260, 128) || knows_delta_widths(6, 8) || knows_delta_widths(8, 6) ||
               knows_delta_widths(0, 4));
}

TEST(PlayedDeltaRecurrence, what_is_not_contiguous_is_no_kernels) {
  EXPECT_THROW(delta_kernel_data(at::zeros({4, 4}).t().narrow(0, 0, 2)), InternalError);
  EXPECT_THROW(delta_kernel_data(at::zeros({4, 4}, at::kDouble)), InternalError);
}

}  // namespace
}  // namespace trireme::played_delta_recurrence_test
