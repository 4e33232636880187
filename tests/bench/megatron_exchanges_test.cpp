// The layer that is measured computes what one rank would: output, dx, and the weights' gradients.
#include "bench/comm/megatron_exchanges.h"

#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

constexpr int64_t kTokens = 7, kBatch = 2, kHidden = 6;

at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

// What stands for attention mixes tokens, the MLP is not linear; rank p has one weight of each.
struct Weights {
  at::Tensor mix = random_tensor({kTokens, kTokens}, 1);
  std::vector<at::Tensor> attention, mlp;
  explicit Weights(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      attention.push_back(random_tensor({kHidden, kHidden}, static_cast<uint64_t>(10 + rank)));
      mlp.push_back(random_tensor({kHidden, kHidden}, static_cast<uint64_t>(20 + rank)));
    }
  }
};

at::Tensor mixed(const at::Tensor& mix, const at::Tensor& x_SBM) {
  return at::matmul(mix, x_SBM.reshape({kTokens, kBatch * kHidden})).view({kTokens, kBatch, kHidden});
}

// Gradient of a weight that takes `in` to `out`.
at::Tensor weight_gradient(const at::Tensor& in, const at::Tensor& d_out) {
  return at::matmul(in.reshape({-1, kHidden}).t(), d_out.reshape({-1, kHidden}));
}

struct Result {
  at::Tensor z, dx, d_attention, d_mlp;
};

Result on_rank(Group& group, const Weights& weights, const at::Tensor& x, const at::Tensor& dz) {
  const auto rank = static_cast<size_t>(group.rank());
  const at::Tensor &mix = weights.mix, &wa = weights.attention[rank], &wm = weights.mlp[rank];
  Result result;
  MegatronBlocks blocks;
  blocks.attention.forward = [&](const at::Tensor& in) { return at::matmul(mixed(mix, in), wa); };
  blocks.attention.backward = [&](const at::Tensor& in, const at::Tensor& d_out) {
    result.d_attention = weight_gradient(mixed(mix, in), d_out);
    return mixed(mix.t(), at::matmul(d_out, wa.t())).contiguous();
  };
  blocks.mlp.forward = [&](const at::Tensor& in) { return at::matmul(in.tanh(), wm); };
  blocks.mlp.backward = [&](const at::Tensor& in, const at::Tensor& d_out) {
    result.d_mlp = weight_gradient(in.tanh(), d_out);
    return at::matmul(d_out, wm.t()) * (1 - in.tanh().square());
  };
  const SequenceLayout layout{kTokens, group.size()};
  const auto mine = [&](const at::Tensor& whole) {
    return whole.narrow(0, layout.begin(group.rank()), layout.size(group.rank())).contiguous();
  };
  const MegatronOutput out = megatron_layer_forward(group, layout, blocks, mine(x));
  result.z = out.z_sBM;
  result.dx = megatron_layer_backward(group, layout, blocks, mine(dz), out.saved);
  return result;
}

void expect_close(const at::Tensor& got, const at::Tensor& truth) {
  EXPECT_LT((got - truth).abs().max().item<double>(), 1e-10 * truth.abs().max().item<double>());
}

TEST(MegatronExchanges, ranks_compute_what_autograd_does_on_one) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    Weights weights(ranks);
    const at::Tensor x = random_tensor({kTokens, kBatch, kHidden}, 3), dz = random_tensor(x.sizes().vec(), 4);
    std::vector<Result> results(static_cast<size_t>(ranks));
    run_ranks_as_threads(ranks, [&](World& world) {
      std::vector<int> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const auto group = world.make_group("tensor", {all});
      results[static_cast<size_t>(world.rank())] = on_rank(*group, weights, x, dz);
    });

    const at::Tensor leaf = x.clone().requires_grad_(true);
    for (auto* list : {&weights.attention, &weights.mlp})
      for (at::Tensor& weight : *list) weight.requires_grad_(true);
    at::Tensor y = leaf;
    for (const at::Tensor& weight : weights.attention) y = y + at::matmul(mixed(weights.mix, leaf), weight);
    at::Tensor z = y;
    for (const at::Tensor& weight : weights.mlp) z = z + at::matmul(y.tanh(), weight);
    z.backward(dz);

    std::vector<at::Tensor> z_parts, dx_parts;
    for (size_t rank = 0; rank < results.size(); ++rank) {
      z_parts.push_back(results[rank].z);
      dx_parts.push_back(results[rank].dx);
      expect_close(results[rank].d_attention, weights.attention[rank].grad());
      expect_close(results[rank].d_mlp, weights.mlp[rank].grad());
    }
    expect_close(at::cat(z_parts, 0), z.detach());
    expect_close(at::cat(dx_parts, 0), leaf.grad());
  }
}

TEST(MegatronExchanges, gather_and_scatter_twice_forward_and_gather_x_again_in_backward) {
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("tensor", {{0, 1}});
    const TensorParallelBlock same{[](const at::Tensor& x) { return x; },
                                   [](const at::Tensor&, const at::Tensor& d_out) { return d_out; }};
    const SequenceLayout layout{4, 2};
    const at::Tensor x = at::ones({2, kBatch, kHidden});
    const MegatronOutput out = megatron_layer_forward(*group, layout, {same, same}, x);
    EXPECT_EQ(group->traffic().at("all_gather").calls, 2);
    EXPECT_EQ(group->traffic().at("reduce_scatter_sum").calls, 2);
    group->reset_traffic();
    megatron_layer_backward(*group, layout, {same, same}, x, out.saved);
    EXPECT_EQ(group->traffic().at("all_gather").calls, 4);
    EXPECT_EQ(group->traffic().at("reduce_scatter_sum").calls, 2);
    EXPECT_EQ(group->traffic().size(), 2U);
  });
}

}  // namespace
}  // namespace trireme
