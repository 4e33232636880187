// What a tile holds beside its tensors: blocks of ATen's temporaries on a device, none with CUDA's kernels
// but sums of the norms' gradients. Against sums made by hand.
#include "trireme/forecast/tile_bytes.h"

#include <utility>

#include <gtest/gtest.h>

#include "trireme/forecast/device_kernels.h"

namespace trireme::tile_bytes_test {
namespace {

constexpr int64_t T = 4096, m = 4096, i = 14336, q = 32 * 128, qkv = q + 2 * 8 * 128, vocab = 128256;

ForecastInputs llama(const DeviceKernels& device) {
  ForecastInputs inputs;
  inputs.model = {.layers = 32,
                  .hidden = m,
                  .intermediate = i,
                  .mlp_kept_width = 2 * i,
                  .heads = 32,
                  .kv_heads = 8,
                  .head_dim = 128,
                  .vocab = vocab};
  inputs.tile_tokens = T;
  inputs.logits_tile_tokens = 2048;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.batch = 1;
  inputs.shard_tokens = 2 * T;
  return with_device(std::move(inputs), device, Precision::bf16);
}

TEST(TileBytes, with_cudas_kernels_a_tile_holds_its_tensors_and_sums_of_norms_gradients) {
  const TileBytes bytes = tile_bytes(llama({.on_gpu = true, .cuda = true}));
  // 192 multiprocessors at most, two blocks of 256 threads on each.
  constexpr int64_t kSums = 192 * 2 * m * 4;
  EXPECT_EQ(bytes.before_attention_forward, T * m * 2);               // normed
  EXPECT_EQ(bytes.before_attention_backward, 2 * T * m * 2 + kSums);  // and dnormed
  EXPECT_EQ(bytes.after_attention_forward, T * (m + 3 * i) * 2);      // normed, gate|up, act; x1 where y is
  // x1, normed, gate|up, dact, act, d(normed)
  EXPECT_EQ(bytes.after_attention_backward, T * (3 * m + 4 * i) * 2);
  EXPECT_EQ(bytes.head, 2048 * (m + vocab) * 2 + 2 * 2048 * m * 2 + kSums);
}

// 64 experts as wide as hidden, of which a token has 8.
TEST(TileBytes, of_a_mixture_hold_the_rows_of_its_experts) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  constexpr int64_t kExperts = 64, k = 8, R = T * k;
  inputs.model.experts = kExperts;
  inputs.model.experts_per_token = k;
  inputs.model.intermediate = m;
  const TileBytes bytes = tile_bytes(inputs);
  constexpr int64_t kRouting = R * (8 + 4 + 3 * 8), kLogits = T * kExperts * 2;
  EXPECT_EQ(bytes.after_attention_forward, kRouting + kLogits + R * 4 * m * 2);  // rows, gate|up, act
  EXPECT_EQ(bytes.after_attention_forward_kept, kRouting + std::max(R * 2 * m * 2, R * m * 2 + T * m * 10));
  // x1, normed; rows, dy of rows, gate|up, d(act), act
  EXPECT_EQ(bytes.after_attention_backward, 2 * T * m * 2 + kRouting + kLogits + R * 6 * m * 2);
  EXPECT_EQ(bytes.after_attention_backward_kept, T * m * 2 + kRouting + R * 4 * m * 2);
}

// Beside a few narrow experts one that is 16 times as wide as hidden.
TEST(TileBytes, of_a_shared_expert_hold_its_gate_and_up_and_what_they_make) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  constexpr int64_t kShared = 16 * m;
  inputs.model.experts = 4;
  inputs.model.experts_per_token = 1;
  inputs.model.intermediate = 128;
  inputs.model.shared_intermediate = kShared;
  const TileBytes bytes = tile_bytes(inputs);
  EXPECT_EQ(bytes.after_attention_forward, T * (m + 3 * kShared) * 2);  // normed; gate|up, act
  EXPECT_EQ(bytes.after_attention_forward_kept, T * (m + kShared) * 2);
  EXPECT_EQ(bytes.after_attention_backward, T * (3 * m + 4 * kShared) * 2);  // and x1, d(normed); d(act)
  EXPECT_EQ(bytes.after_attention_backward_kept, T * (2 * m + 2 * kShared) * 2);
}

// As Gemma 4's: a tile is computed once more and kept for its backward.
TEST(TileBytes, of_experts_beside_an_mlp_hold_what_goes_into_their_norms) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  constexpr int64_t kShared = 16 * m, kExperts = 64, k = 8, R = T * k;
  inputs.model.experts_beside_mlp = inputs.model.post_norms = true;
  inputs.model.experts = 4;
  inputs.model.experts_per_token = 1;
  inputs.model.intermediate = 128;
  inputs.model.shared_intermediate = kShared;
  const auto kept = [&] {
    const ModelSizes& model = inputs.model;
    return T * (inputs.model.mlp_kept_width = 2 * model.shared_intermediate +
                                              2 * model.experts_per_token * model.intermediate +
                                              model.experts + 2 * m);
  };
  int64_t held = (3 * m * T + kept()) * 2;  // a, x1, normed
  const TileBytes wide = tile_bytes(inputs);
  EXPECT_EQ(wide.after_attention_forward, T * (m + 3 * kShared) * 2);              // normed; gate|up, act
  EXPECT_EQ(wide.after_attention_backward, held + T * (2 * m + 2 * kShared) * 2);  // d(x1), d(b); d(act), act

  inputs.model.experts = kExperts;
  inputs.model.experts_per_token = k;
  inputs.model.intermediate = m;
  inputs.model.shared_intermediate = 128;
  constexpr int64_t kRouting = R * (8 + 4 + 3 * 8 + 4), kLogits = T * kExperts * 2;
  held = (3 * m * T + kept()) * 2;
  const TileBytes many = tile_bytes(inputs);
  // sum; rows, gate|up, act
  EXPECT_EQ(many.after_attention_forward, T * m * 2 + kRouting + kLogits + R * 4 * m * 2);
  // d(sum), d(e), the inputs of router and experts; rows, dy of rows, d(act), act
  EXPECT_EQ(many.after_attention_backward, held + 4 * T * m * 2 + kRouting + R * 4 * m * 2);
}

// A narrow MLP, so that what is added up is the most.
TEST(TileBytes, hold_x1_and_d_x1_beside_y_and_dy_only_where_these_have_another_dtype) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  inputs.model.intermediate = 8;
  const TileBytes in_place = tile_bytes(inputs);
  EXPECT_EQ(in_place.after_attention_forward, T * (m + 3 * 8) * 2);  // normed, gate|up, act
  EXPECT_EQ(in_place.after_attention_backward,
            T * (3 * m + 4 * 8) * 2);  // x1, normed, d(normed); gate|up, dact, act
  EXPECT_EQ(in_place.after_attention_backward_kept, T * (2 * m + 2 * 8) * 2);
  inputs.tile_bytes = 4;
  const TileBytes apart = tile_bytes(inputs);
  EXPECT_EQ(apart.after_attention_forward, T * (2 * m + 3 * 8) * 4);       // and x1
  EXPECT_EQ(apart.after_attention_backward, T * (q + 4 * m + 4 * 8) * 4);  // and o, dy
  EXPECT_EQ(apart.after_attention_backward_kept, T * (q + 3 * m + 2 * 8) * 4);
}

// Of a DeltaNet two modules have one matrix A each.
TEST(TileBytes, of_lora_are_those_of_a_delta_nets_modules) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  constexpr int64_t kRank = 1024;
  inputs.model.adapters = {.unit_elements = {1}, .rank = kRank};
  inputs.model.delta_net = DeltaNet{{2, 2, 64, 64}, 4};
  const auto forward = [&](DeltaProjections projections) {
    inputs.model.delta_net->projections = projections;
    return tile_bytes(inputs).before_attention_forward;
  };
  EXPECT_EQ(forward(DeltaProjections::by_kind) - forward(DeltaProjections::by_key_head), T * 2 * kRank * 2);
}

// long_documents.h: cuDNN computes them, which has 16 bits alone, where --attention leaves the choice.
TEST(DeviceKernels, compute_documents_alone_with_cuda_in_16_bits_where_samples_are_packed) {
  const DeviceKernels cuda{.on_gpu = true, .cuda = true, .packed_documents = true};
  const auto alone = [](DeviceKernels device, Precision precision) {
    return with_device({}, device, precision).documents_alone;
  };
  EXPECT_TRUE(alone(cuda, Precision::bf16));
  EXPECT_TRUE(alone(cuda, Precision::fp16));
  EXPECT_FALSE(alone(cuda, Precision::fp32));
  DeviceKernels other = cuda;
  other.packed_documents = false;
  EXPECT_FALSE(alone(other, Precision::bf16));
  other = cuda;
  other.attention = AttentionKernel::flash;
  EXPECT_FALSE(alone(other, Precision::bf16));
  other = cuda;
  other.cuda = false;
  EXPECT_FALSE(alone(other, Precision::bf16));
}

// key_blocks.h: of cuDNN's dense calls.
TEST(DeviceKernels, cut_long_attention_where_cudnn_computes_it) {
  const auto cuts = [](AttentionKernel attention, Precision precision, bool cuda) {
    return with_device({}, {.on_gpu = true, .cuda = cuda, .attention = attention}, precision).key_blocks;
  };
  using enum AttentionKernel;
  for (const AttentionKernel attention : {automatic, cudnn, cudnn_packed}) {
    EXPECT_TRUE(cuts(attention, Precision::bf16, true));
    EXPECT_TRUE(cuts(attention, Precision::fp16, true));
    EXPECT_FALSE(cuts(attention, Precision::fp32, true));
    EXPECT_FALSE(cuts(attention, Precision::bf16, false));
  }
  for (const AttentionKernel attention : {flash, reference})
    EXPECT_FALSE(cuts(attention, Precision::bf16, true));
}

TEST(DeviceKernels, compute_capped_scores_by_tiles_on_cuda_and_nothing_else_there) {
  using enum AttentionKernel;
  ForecastInputs capped;
  capped.model.caps_scores = true;
  const auto with = [](const ForecastInputs& inputs, AttentionKernel attention, bool cuda = true) {
    return with_device(
        inputs,
        {.on_gpu = cuda, .cuda = cuda, .attention = attention, .flash4 = true, .packed_documents = true},
        Precision::bf16);
  };
  EXPECT_TRUE(with(capped, automatic).score_tiles);
  EXPECT_TRUE(with({}, AttentionKernel::tiles).score_tiles);
  EXPECT_FALSE(with(capped, reference).score_tiles);
  EXPECT_FALSE(with(capped, automatic, /*cuda=*/false).score_tiles);
  EXPECT_FALSE(with({}, automatic).score_tiles);
  const ForecastInputs inputs = with(capped, automatic), plain = with({}, automatic);
  EXPECT_TRUE(plain.flash4 && plain.key_blocks && plain.documents_alone);
  EXPECT_FALSE(inputs.flash4 || inputs.key_blocks || inputs.documents_alone);
  EXPECT_FALSE(with(capped, cudnn_packed).packed_graphs);
}

TEST(DeviceKernels, have_flash4_in_bf16_where_the_gpu_runs_it_and_it_is_not_ruled_out) {
  using enum AttentionKernel;
  const auto has = [](DeviceKernels device, Precision precision = Precision::bf16) {
    return with_device({}, device, precision).flash4;
  };
  const DeviceKernels hopper{.on_gpu = true, .cuda = true, .flash4 = true};
  EXPECT_TRUE(has(hopper));
  EXPECT_FALSE(has(hopper, Precision::fp16));
  EXPECT_FALSE(has(hopper, Precision::fp32));
  EXPECT_FALSE(has({.on_gpu = true, .cuda = true}));
  for (const auto& [attention, flash4] : {std::pair(AttentionKernel::flash4, true),
                                          {cudnn, false},
                                          {cudnn_packed, false},
                                          {flash, false},
                                          {reference, false}}) {
    DeviceKernels asked = hopper;
    asked.attention = attention;
    EXPECT_EQ(has(asked), flash4) << name_of(attention);
  }
  EXPECT_FALSE(
      with_device({}, {.on_gpu = true, .cuda = true, .attention = AttentionKernel::flash4}, Precision::bf16)
          .key_blocks);
}

TEST(TileBytes, heads_with_norms_hold_their_sums_while_they_are_turned_back) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  const int64_t without = tile_bytes(inputs).before_attention_backward;
  inputs.model.qk_norm = true;
  EXPECT_EQ(tile_bytes(inputs).before_attention_backward, without + T * (q + 8 * 128) * 2);
  inputs.shard_tokens = inputs.tile_tokens = 1;  // the tile's own tensors are small
  EXPECT_GE(tile_bytes(inputs).before_attention_backward, 2 * 192 * 2 * 128 * 4);
}

// As many key/value heads as query heads, so that what is of v is the most.
TEST(TileBytes, of_normed_values_hold_them_beside_the_whole_projection) {
  ForecastInputs inputs = llama({.on_gpu = true, .cuda = true});
  inputs.model.kv_heads = 32;
  inputs.model.qk_norm = inputs.model.v_norm = true;
  // The norm of rows 128 wide: blocks of 32 threads, 768 on each multiprocessor.
  constexpr int64_t kSums = 768 / 32 * 192 * 128 * 4, v = q;
  EXPECT_EQ(tile_bytes(inputs).before_attention_forward, T * (m + 2 * v) * 2);  // normed; v, and normed
  EXPECT_EQ(tile_bytes(inputs).before_attention_backward,
            T * (m + 3 * v + 3 * v) * 2 + kSums);  // before; d(v), v, dv
  inputs.model.keys_are_values = true;
  EXPECT_EQ(tile_bytes(inputs).before_attention_forward, T * (m + 2 * v + 2 * v) * 2);  // the projection too
  EXPECT_EQ(tile_bytes(inputs).before_attention_backward, T * (m + 2 * v + 2 * v + 3 * v) * 2 + kSums);
  const TileBytes stored_as_tiles = tile_bytes(inputs);
  inputs.storage_bytes = 4;
  EXPECT_EQ(tile_bytes(inputs).before_attention_forward, stored_as_tiles.before_attention_forward);
  EXPECT_EQ(tile_bytes(inputs).before_attention_backward, stored_as_tiles.before_attention_backward);
}

TEST(TileBytes, a_device_without_cudas_kernels_holds_atens_blocks) {
  const TileBytes cuda = tile_bytes(llama({.on_gpu = true, .cuda = true})),
                  other = tile_bytes(llama({.on_gpu = true, .cuda = false}));
  constexpr int64_t kBlock = (int64_t{1} << 23) / m * m * 4;  // fp32
  EXPECT_EQ(other.before_attention_backward, 2 * T * m * 2 + 3 * kBlock);
  EXPECT_EQ(cuda.before_attention_forward, T * m * 2);
  EXPECT_GT(other.before_attention_forward, T * m * 2 + kBlock);
  EXPECT_GT(other.after_attention_backward, cuda.after_attention_backward);
  EXPECT_GT(other.head, cuda.head);
}

}  // namespace
}  // namespace trireme::tile_bytes_test
