// Every way to share a sequence gives the loss and every gradient of one rank that holds it whole: Ulysses x
// ring, ring or gathered keys, head chunks, with packed documents, windows, padding, sparse blocks, and full
// attention; and a pack gives those of its documents run alone.
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/sequence_degrees.h"

#include "tests/engine/step_outcome.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

namespace trireme::sequence_modes_test {
namespace {

using testing::expect_same;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::TemporaryFolder;

struct Input {
  int64_t batch = 2;
  int64_t tokens = 61;
  std::vector<Documents> documents;
};

constexpr int64_t kVocabulary = 70;
// Of rounding, which the sharp scores of Gemma 4 amplify.
constexpr double kTolerance = 2e-5, kSharpTolerance = 5e-5;

Outcome run(const std::filesystem::path& model, const EngineOptions& options, const Input& input) {
  Outcome outcome;
  std::mutex lock;
  const int ranks = options.ulysses * options.ring;
  run_ranks_as_threads(ranks, [&](World& world) {
    const auto engine = assemble(world, model, options);
    const SampleLayout layout{input.tokens, options.ulysses, options.ring};
    const TokenBatch batch = testing::slice_of_batch(input.batch, kVocabulary, 5, layout,
                                                     engine->mesh().sp->rank(), input.documents);
    Outcome mine{engine->accumulate_gradients({batch}), testing::all_gradients(*engine)};
    const std::lock_guard guard(lock);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

struct Mode {
  int ulysses, ring;
  RingMethod method = RingMethod::ring;
  int head_chunks = 1;
  Recompute recompute = Recompute::keep_attention;
  int64_t checkpoint_every = 1;
};

std::vector<Mode> modes() {
  return {{2, 1, RingMethod::ring, 2},
          {2, 1, RingMethod::ring, 3, Recompute::full, 2},
          {3, 1, RingMethod::ring, 2, Recompute::none},
          {1, 2},
          {1, 3, RingMethod::gather, 1, Recompute::none},
          {1, 4, RingMethod::ring, 1, Recompute::full},
          {2, 2, RingMethod::ring, 1, Recompute::none},
          {2, 2, RingMethod::gather, 2, Recompute::full},
          {3, 2, RingMethod::ring, 2, Recompute::keep_attention, 2},
          {2, 3, RingMethod::gather}};
}

EngineOptions options_of(const Mode& mode) {
  EngineOptions options;
  options.ulysses = mode.ulysses;
  options.ring = mode.ring;
  options.ring_method = mode.method;
  options.head_chunks = mode.head_chunks;
  options.recompute.policy = mode.recompute;
  options.recompute.checkpoint_every = mode.checkpoint_every;
  options.tile_tokens = 13;
  return options;
}

// Of several inputs a mode has one, by turns.
void expect_modes_equal_one_rank(const std::filesystem::path& model, const std::vector<Input>& inputs,
                                 const std::string& what, double tolerance = kTolerance) {
  std::vector<Outcome> one;
  for (const Input& input : inputs) one.push_back(run(model, {}, input));
  size_t turn = 0;
  for (const Mode& mode : modes()) {
    expect_same(run(model, options_of(mode), inputs[turn]), one[turn], tolerance,
                cat(what, inputs[turn].documents.empty() ? "" : ", packed", ", ulysses ", mode.ulysses,
                    " ring ", mode.ring, " chunks ", mode.head_chunks));
    turn = (turn + 1) % inputs.size();
  }
}

// A document of one token, one longer than a share, borders inside shares, another pack in each sample, and
// padding.
Input packed() {
  std::vector<int64_t> padded{0, 7, 46};
  for (int64_t end = 47; end <= 61; ++end) padded.push_back(end);
  return {2, 61, {Documents({0, 1, 40, 45, 61}), Documents(padded)}};
}

TEST(SequenceModes, gradients_are_those_of_one_rank) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(6, 3));
  for (const Input& input : {Input(), packed()}) expect_modes_equal_one_rank(folder.path(), {input}, "llama");
}

TEST(SequenceModes, windows_of_some_layers_hold_in_every_mode) {
  TemporaryFolder folder;
  Json config = testing::tiny_llama_config(6, 3);
  config["model_type"] = "qwen2";
  config["architectures"] = {"Qwen2ForCausalLM"};
  config["use_sliding_window"] = true;
  config["sliding_window"] = 17;
  config["max_window_layers"] = 1;
  testing::write_tiny_model(folder.path(), config);
  for (const Input& input : {Input(), packed()})
    expect_modes_equal_one_rank(folder.path(), {input}, "windows");
}

TEST(SequenceModes, layers_with_another_rotary_embedding_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_gemma3_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {Input(), packed()}, "gemma 3");
}

TEST(SequenceModes, capped_scores_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_gemma2_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {Input(), packed()}, "gemma 2");
}

TEST(SequenceModes, layers_with_other_heads_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_gemma4_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {Input(), packed()}, "gemma 4", kSharpTolerance);
}

TEST(SequenceModes, keys_of_earlier_layers_and_layer_inputs_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_gemma4_e2b_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {Input(), packed()}, "gemma 4 E2B", kSharpTolerance);
}

// Four value heads read two key heads: two ranks have a key head each, more share them, and of more than four
// some have no head.
TEST(SequenceModes, delta_nets_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_qwen3_5_config(6, 3));
  for (const Input& input : {Input(), packed()})
    expect_modes_equal_one_rank(folder.path(), {input}, "qwen 3.5");
}

TEST(SequenceModes, experts_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_mixture_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {Input(), packed()}, "mixture");
  TemporaryFolder beside;
  testing::write_tiny_model(beside.path(), testing::tiny_gemma4_experts_config(6, 3));
  expect_modes_equal_one_rank(beside.path(), {packed()}, "experts beside an MLP");
}

TEST(SequenceModes, delta_nets_and_shared_experts_hold_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_qwen3_next_config(6, 3));
  expect_modes_equal_one_rank(folder.path(), {packed()}, "qwen 3 next");
}

TEST(SequenceModes, full_attention_of_an_encoder_holds_in_every_mode) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_bert_config(6));
  for (const Input& input : {Input(), packed()})
    expect_modes_equal_one_rank(folder.path(), {input}, "encoder");
}

TEST(SequenceModes, sparse_blocks_hold_over_ulysses_ranks_and_change_the_numbers) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(6, 3));
  EngineOptions options;
  options.sparse = {.block_tokens = 64, .local_blocks = 1, .global_blocks = 1};
  const Input input{1, 300, {}};
  const Outcome dense = run(folder.path(), {}, input), one = run(folder.path(), options, input);
  EXPECT_GT(std::abs(one.step.loss - dense.step.loss), 1e-5);
  options.attention = AttentionKernel::reference;
  expect_same(run(folder.path(), options, input), one, kTolerance, "reference kernel");
  options.attention = AttentionKernel::automatic;
  for (const int ulysses : {2, 3}) {
    options.ulysses = ulysses;
    options.head_chunks = 2;
    expect_same(run(folder.path(), options, input), one, kTolerance, cat("ulysses ", ulysses));
  }
}

// Dynamic NTK looks at each document's own length.
TEST(SequenceModes, a_pack_gives_the_gradients_of_its_documents_run_alone) {
  TemporaryFolder folder;
  Json config = testing::tiny_llama_config();
  config["max_position_embeddings"] = 16;
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 3.0}};
  testing::write_tiny_model(folder.path(), config);
  const Documents pack({0, 1, 40, 45, 61});
  Outcome alone;
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder.path(), {});
    const TokenBatch whole = testing::slice_of_batch(1, kVocabulary, 5, {61, 1, 1}, 0, {pack});
    StepBatches documents;
    for (size_t i = 1; i < pack.cu_seqlens().size(); ++i) {
      const int64_t begin = pack.cu_seqlens()[i - 1], size = pack.cu_seqlens()[i] - begin;
      documents.push_back({whole.tokens.narrow(1, begin, size).contiguous(),
                           whole.targets.narrow(1, begin, size).contiguous(),
                           {size, 1, 1},
                           {}});
    }
    alone = {engine->accumulate_gradients(documents), testing::all_gradients(*engine)};
  });
  const Input input{1, 61, {pack}};
  expect_same(run(folder.path(), {}, input), alone, kTolerance, "one rank");
  for (const Mode& mode : {Mode{2, 1}, Mode{1, 3}, Mode{2, 2, RingMethod::gather}})
    expect_same(run(folder.path(), options_of(mode), input), alone, kTolerance,
                cat("ulysses ", mode.ulysses, " ring ", mode.ring));
}

TEST(SequenceModes, model_flops_count_the_pairs_that_documents_leave) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder.path(), {});
    const ModelConfig& config = engine->config();
    const auto flops = [&](const std::vector<Documents>& documents) {
      return engine->model_flops(testing::slice_of_batch(1, kVocabulary, 5, {60, 1, 1}, 0, documents));
    };
    const double matmuls = 6.0 * static_cast<double>(engine->layout().matmul_parameter_count()) * 60;
    const double of_square = 6.0 * static_cast<double>(config.num_hidden_layers) *
                             static_cast<double>(config.heads().query_width());
    EXPECT_DOUBLE_EQ(flops({}), matmuls + of_square * 60 * 60);
    EXPECT_DOUBLE_EQ(flops({Documents({0, 20, 60})}), matmuls + of_square * (20 * 20 + 40 * 40));
  });
}

template <typename Error>
std::string refusal(const std::filesystem::path& model, const EngineOptions& options, const Input& input) {
  return testing::message_of<Error>([&] { run(model, options, input); });
}

TEST(SequenceModes, requests_that_cannot_be_are_refused_and_told_what_would_work) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(4, 2));
  const auto refused = [&](const EngineOptions& options, const Input& input = {}) {
    return refusal<ConfigError>(folder.path(), options, input);
  };
  EXPECT_THAT(refused({.ulysses = 2, .ring = 2}, {1, 3, {}}),
              HasSubstr("3 tokens is shorter than the 4 ranks that share it"));
  EXPECT_THAT(refused({.ulysses = 5}), HasSubstr("use --ulysses 4 or less, and --ring"));
  EXPECT_THAT(refused({.ulysses = 2, .head_chunks = 3}), HasSubstr("--head_chunks 2 or less"));
  EXPECT_THAT(refused({.head_chunks = 2}), HasSubstr("give --ulysses N"));
  EXPECT_THAT(refused({.ring_method = RingMethod::gather}), HasSubstr("give --ring N"));
  EXPECT_THAT(refused({.ring = 2, .sparse = {.block_tokens = 64}}), HasSubstr("use --ulysses alone"));
  EXPECT_THAT(refused({.sparse = {.block_tokens = 48}}), HasSubstr("a multiple of 64"));
  EXPECT_THAT(refused({.sparse = {.global_blocks = 2}}), HasSubstr("--sparse_block_tokens N"));
  EXPECT_THAT(refused({.ring = 3, .strict_divisible = true}, {1, 61, {}}), HasSubstr("60 and 66"));
}

TEST(SequenceModes, sp_takes_ulysses_as_far_as_heads_and_machine_allow_and_a_ring_for_the_rest) {
  const auto chosen = [](int sp, int64_t heads, int machine) {
    const SequenceDegrees degrees = choose_degrees(sp, heads, machine);
    return std::pair(degrees.ulysses, degrees.ring);
  };
  EXPECT_EQ(chosen(8, 32, 8), std::pair(8, 1));
  EXPECT_EQ(chosen(8, 28, 8), std::pair(4, 2));
  EXPECT_EQ(chosen(8, 14, 8), std::pair(2, 4));
  EXPECT_EQ(chosen(2, 7, 8), std::pair(2, 1));
  EXPECT_EQ(chosen(16, 32, 8), std::pair(8, 2));
  EXPECT_EQ(chosen(64, 28, 8), std::pair(4, 16));
  EXPECT_EQ(chosen(1, 7, 1), std::pair(1, 1));
}

}  // namespace
}  // namespace trireme::sequence_modes_test
