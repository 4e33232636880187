// A training step whose running x_BsM has more than 2^31 elements on one rank: one sample of packed
// documents. The oracle is the same documents as micro-batches of one step, a document each, none of whose
// tensors has a hundredth of that. 11 GiB of memory in bf16, 20 GiB in fp32, and three minutes on two cores.

#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/engine/assemble.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/measure/memory_report.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/memory_at_hand.h"
#include "tests/support/relative_error.h"

namespace trireme {
namespace {

using testing::relative_error;
using testing::TemporaryFolder;

constexpr int64_t k2To31 = int64_t{1} << 31;
constexpr int64_t kHidden = 2048, kVocabulary = 64;
constexpr int64_t kFirstBeyond = k2To31 / kHidden;  // the first token whose values of x lie beyond
// Tokens beyond have ids that no other token has: their rows of the embedding's gradient come from there
// alone.
constexpr int64_t kIdsBeyond = 8;

Json wide_model() {
  Json config = testing::tiny_llama_config(1, 1);
  config.update({{"hidden_size", kHidden},
                 {"head_dim", 16},
                 {"intermediate_size", 16},
                 {"num_hidden_layers", 1},
                 {"vocab_size", kVocabulary},
                 {"max_position_embeddings", 2048}});
  return config;
}

// The sample: documents of 900 to 1,150 tokens, 16 of them beyond, and in none of them a length that is a
// round number.
struct Sample {
  std::vector<int64_t> cu_seqlens{0};
  at::Tensor tokens, targets;  // [1, S]

  Sample() {
    const auto add = [&] {
      const auto document = static_cast<int64_t>(cu_seqlens.size());
      cu_seqlens.push_back(cu_seqlens.back() + 900 + document * 97 % 251);
    };
    while (cu_seqlens.back() < kFirstBeyond) add();
    first_beyond_ = documents();
    while (documents() < first_beyond_ + 16) add();

    auto generator = at::detail::createCPUGenerator(8);
    const int64_t count = cu_seqlens.back(), begin = cu_seqlens[static_cast<size_t>(first_beyond_)];
    tokens = at::randint(0, kVocabulary - kIdsBeyond, {1, count}, generator, at::kLong);
    tokens.narrow(1, begin, count - begin)
        .copy_(at::randint(kVocabulary - kIdsBeyond, kVocabulary, {1, count - begin}, generator, at::kLong));
    targets = at::randint(0, kVocabulary, {1, count}, generator, at::kLong);
    for (size_t i = 1; i < cu_seqlens.size(); ++i) targets[0][cu_seqlens[i] - 1] = kIgnoredLabel;
  }

  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t first_beyond() const { return first_beyond_; }  // a document

  TokenBatch packed() const {
    TokenBatch batch;
    batch.tokens = tokens;
    batch.targets = targets;
    batch.layout = {cu_seqlens.back()};
    batch.documents = {Documents(cu_seqlens)};
    return batch;
  }
  TokenBatch alone(int64_t document) const {
    const int64_t begin = cu_seqlens[static_cast<size_t>(document)],
                  count = cu_seqlens[static_cast<size_t>(document) + 1] - begin;
    TokenBatch batch;
    batch.tokens = tokens.narrow(1, begin, count);
    batch.targets = targets.narrow(1, begin, count);
    batch.layout = {count};
    return batch;
  }
  StepBatches each_alone() const {
    StepBatches batches;
    batches.reserve(static_cast<size_t>(documents()));
    for (int64_t document = 0; document < documents(); ++document) batches.push_back(alone(document));
    return batches;
  }

 private:
  int64_t first_beyond_ = 0;
};

class LargeTensors : public ::testing::TestWithParam<Precision> {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

TEST_P(LargeTensors, a_step_past_2_to_the_31_elements_is_that_of_its_documents_alone) {
  const TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), wide_model(), /*spread=*/0.02);
  const Sample sample;
  ASSERT_GT(sample.cu_seqlens.back() * kHidden, k2To31 + 16 * 900 * kHidden);
  std::string lack;
  run_ranks_as_threads(1, [&](World& world) {
    EngineOptions options;
    options.precision = GetParam();
    options.bf16_matmul = Bf16Matmul::fp32;
    options.recompute.policy = Recompute::full;
    options.tile_tokens = options.logits_tile_tokens = 2048;
    const auto engine = assemble(world, folder.path(), options);
    const MemoryForecast forecast = memory_forecast(engine->forecast_inputs(1, sample.cu_seqlens.back()));
    // What is not in tensors comes to it; what the allocator kept of an earlier test serves again.
    const HostMemoryCounts counts = host_memory_counts();
    const int64_t kept = counts.reserved_bytes - counts.in_use_bytes;
    lack = testing::lack_of_memory(forecast.peak_total_bytes + forecast.peak_total_bytes / 20 - kept);
    if (!lack.empty()) return;

    const StepResult packed = engine->accumulate_gradients({sample.packed()});
    const auto gradients = testing::all_gradients(*engine);
    const MemoryState memory = engine->memory_account()->state();
    EXPECT_NEAR(static_cast<double>(memory.peak_total_bytes), static_cast<double>(forecast.peak_total_bytes),
                0.05 * static_cast<double>(forecast.peak_total_bytes))
        << memory_report(memory, forecast);

    const StepResult alone = engine->accumulate_gradients(sample.each_alone());
    const auto expected = testing::all_gradients(*engine);
    EXPECT_EQ(packed.target_tokens, sample.cu_seqlens.back() - sample.documents());
    EXPECT_EQ(packed.target_tokens, alone.target_tokens);
    constexpr double kTolerance = 1e-4;
    EXPECT_NEAR(packed.loss / alone.loss, 1, kTolerance);
    EXPECT_NEAR(packed.gradient_norm / alone.gradient_norm, 1, kTolerance);
    // Where a processor multiplies in bf16, documents whose blocks of attention begin elsewhere round
    // elsewhere.
    const bool bf16_products = GetParam() == Precision::bf16 && processor_bf16_units();
    const double tolerance = bf16_products ? 3e-4 : kTolerance;
    for (const auto& [name, gradient] : expected)
      EXPECT_LT(relative_error(gradients.at(name), gradient), tolerance) << name;
    const auto beyond = [](const std::map<std::string, at::Tensor>& of) {
      return of.at("model.embed_tokens.weight").narrow(0, kVocabulary - kIdsBeyond, kIdsBeyond);
    };
    EXPECT_LT(relative_error(beyond(gradients), beyond(expected)), tolerance) << "rows of tokens beyond";

    // And forward alone, token by token.
    const at::Tensor losses = engine->evaluate(sample.packed()).loss_Bs;
    for (const int64_t document : {int64_t{0}, sample.first_beyond() - 1, sample.first_beyond(),
                                   sample.first_beyond() + 7, sample.documents() - 1}) {
      const at::Tensor own = engine->evaluate(sample.alone(document)).loss_Bs;
      const int64_t begin = sample.cu_seqlens[static_cast<size_t>(document)];
      EXPECT_LT(relative_error(losses.narrow(1, begin, own.size(1)), own), GetParam() == Precision::fp32
                                                                               ? 1e-5
                                                                           : bf16_products ? 3e-3
                                                                                           : 1e-3)
          << "document " << document;
    }
  });
  if (!lack.empty()) GTEST_SKIP() << lack;
}

INSTANTIATE_TEST_SUITE_P(In, LargeTensors, ::testing::Values(Precision::bf16, Precision::fp32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trireme
