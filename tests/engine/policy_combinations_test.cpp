// Neither memory policies nor ways to share a sequence change results: a table of configurations in which every pair of
// choices occurs, each against the plain run on one rank: losses, first-step gradients and weights after SGD steps.
#include <mutex>
#include <random>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/engine/recompute_plan.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/relative_error.h"

namespace trireme::policy_combinations_test {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kLayers = 3;
constexpr int64_t kVocabulary = 70;

// Choices by number, in the order of kChoices.
enum Choice : size_t {
  kRanks,
  kSharing,
  kHeadChunks,
  kDocuments,
  kZero,
  kParameters,
  kOptimizer,
  kActivations,
  kRecompute,
  kEvery,
  kFraction,
  kTile,
  kLogitsTile,
  kPrecision,
  kState,
  kReduce,
  kInBackward,
  kMicro,
  kChoiceCount
};
constexpr std::array<int, kChoiceCount> kChoices{4, 4, 2, 2, 4, 3, 3, 3, 3, 3, 2, 3, 2, 3, 2, 2, 2, 2};
using Row = std::array<int, kChoiceCount>;

struct Case {
  int ranks = 1;
  int micro = 1;  // micro-batches of each data-parallel rank, so that all cases see the same 4 samples
  bool packed = false;
  EngineOptions options;
};

// What a row means, or nothing where it is no valid combination.
std::optional<Case> case_of(const Row& row, const std::filesystem::path& folder) {
  Case result;
  result.ranks = row[kRanks] + 1;
  EngineOptions& o = result.options;
  if (row[kSharing] == 1) o.ulysses = result.ranks;
  if (row[kSharing] == 2) o.ring = result.ranks;
  if (row[kSharing] == 3) {
    if (result.ranks % 2 != 0) return std::nullopt;
    o.ulysses = result.ranks / 2;
    o.ring = 2;
    o.ring_method = RingMethod::gather;
  }
  o.head_chunks = row[kHeadChunks] + 1;
  if (o.head_chunks > 1 && o.ulysses > 2) return std::nullopt;  // a rank has one head
  result.packed = row[kDocuments] == 1;
  const int dp = result.ranks / (o.ulysses * o.ring);
  if (4 % dp != 0) return std::nullopt;
  o.zero = static_cast<ZeroStage>(row[kZero]);
  o.offload.parameters = static_cast<Offload>(row[kParameters]);
  o.offload.optimizer = static_cast<Offload>(row[kOptimizer]);
  o.offload.activations = static_cast<Offload>(row[kActivations]);
  if (uses_disk(o.offload)) o.offload.folder = folder;
  o.recompute = static_cast<Recompute>(row[kRecompute]);
  o.checkpoint_every = std::array{1, 2, 9}[static_cast<size_t>(row[kEvery])];
  o.keep_fraction = row[kFraction] == 0 ? 1 : 0.4;
  o.tile_tokens = std::array{0, 7, 100}[static_cast<size_t>(row[kTile])];
  o.logits_tile_tokens = row[kLogitsTile] == 0 ? 0 : 5;
  o.precision = static_cast<Precision>(row[kPrecision]);
  o.optimizer.state_dtype = row[kState] == 0 ? at::kFloat : at::kBFloat16;
  o.reduce_dtype = row[kReduce] == 0 ? at::kFloat : at::kBFloat16;
  o.update_in_backward = row[kInBackward] == 1;
  o.loss_scale.initial = 1024;
  // One step is 4 samples: in dp x micro-batches x batch.
  result.micro = row[kMicro] == 0 ? 1 : std::max(1, 4 / dp / 2);
  if (o.update_in_backward && result.micro > 1) return std::nullopt;
  o.optimizer.max_grad_norm = o.update_in_backward ? 0 : 0.5;
  try {
    check_engine_options(o);
    make_recompute_plan(o.recompute, o.checkpoint_every, o.keep_fraction, kLayers);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return result;
}

// Rows until every pair of choices that can stand together does: greedy over random valid rows, seeded.
std::vector<Row> covering_rows(const std::filesystem::path& folder) {
  std::mt19937 random(7);
  std::vector<Row> candidates;
  for (int tries = 0; tries < 60000; ++tries) {
    Row row{};
    for (size_t at = 0; at < kChoiceCount; ++at) row[at] = static_cast<int>(random() % kChoices[at]);
    if (case_of(row, folder)) candidates.push_back(row);
  }
  const auto pairs_of = [](const Row& row) {
    std::vector<int> pairs;
    for (size_t a = 0; a < kChoiceCount; ++a)
      for (size_t b = a + 1; b < kChoiceCount; ++b)
        pairs.push_back(static_cast<int>((a * kChoiceCount + b) * 16) + row[a] * 4 + row[b]);
    return pairs;
  };
  std::set<int> missing;
  for (const Row& row : candidates)
    for (const int pair : pairs_of(row)) missing.insert(pair);
  std::vector<Row> rows;
  while (!missing.empty()) {
    size_t best = 0, most = 0;
    for (size_t at = 0; at < candidates.size(); ++at) {
      if (at % 16 != rows.size() % 16) continue;  // a sixteenth of them is choice enough
      size_t gain = 0;
      for (const int pair : pairs_of(candidates[at])) gain += missing.count(pair);
      if (gain > most) most = gain, best = at;
    }
    if (most == 0) {
      for (best = 0; best < candidates.size(); ++best) {
        const auto pairs = pairs_of(candidates[best]);
        if (std::any_of(pairs.begin(), pairs.end(), [&](int pair) { return missing.contains(pair); })) break;
      }
    }
    for (const int pair : pairs_of(candidates[best])) missing.erase(pair);
    rows.push_back(candidates[best]);
  }
  return rows;
}

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  // of the first step; none with update_in_backward
  std::map<std::string, at::Tensor> weights;    // after the steps
};

Outcome run(const std::filesystem::path& model, const Case& c, OptimizerKind optimizer, int steps) {
  Outcome outcome;
  std::mutex lock;
  run_ranks_as_threads(c.ranks, [&](World& world) {
    EngineOptions options = c.options;
    options.optimizer.kind = optimizer;
    if (optimizer == OptimizerKind::sgd) {
      options.optimizer.state_dtype = at::kFloat;
      options.offload.optimizer = Offload::none;  // on fp32 values it keeps nothing to offload
      if (!uses_disk(options.offload)) options.offload.folder.clear();
    }
    const auto engine = assemble(world, model, options);
    const Mesh& mesh = engine->mesh();
    const int batch = 4 / mesh.dp_size / c.micro;
    const auto batches_of = [&](int step) {
      StepBatches batches;
      for (int micro = 0; micro < c.micro; ++micro) {
        // Sample n of the step is the same tokens however the samples are dealt out.
        std::vector<at::Tensor> tokens, targets;
        std::vector<Documents> documents;
        TokenBatch one;
        for (int at = 0; at < batch; ++at) {
          const int sample = (mesh.dp_index * c.micro + micro) * batch + at;
          std::vector<Documents> pack;
          if (c.packed) pack.emplace_back(std::vector<int64_t>{0, 1 + sample, 19, 29});
          one = testing::slice_of_batch(1, kVocabulary,
                                        static_cast<uint64_t>(step) * 4 + static_cast<uint64_t>(sample),
                                        {29, options.ulysses, options.ring}, mesh.sp->rank(), pack);
          tokens.push_back(one.tokens);
          targets.push_back(one.targets);
          documents.insert(documents.end(), pack.begin(), pack.end());
        }
        one.documents = documents;
        one.tokens = at::cat(tokens);
        one.targets = at::cat(targets);
        batches.push_back(one);
      }
      return batches;
    };
    Outcome mine;
    if (!options.update_in_backward) {
      engine->accumulate_gradients(batches_of(0));
      mine.gradients = testing::all_gradients(*engine);
    }
    for (int step = 0; step < steps; ++step)
      mine.losses.push_back(
          engine->train_step(batches_of(step), optimizer == OptimizerKind::sgd ? 0.3 : 1e-3).loss);
    for (size_t unit = 0; unit < engine->layout().units.size(); ++unit) {
      const at::Tensor values = engine->unit_values(static_cast<int>(unit)).to(at::kFloat).clone();
      for (const ParameterSpec& parameter : engine->layout().units[unit].parameters)
        mine.weights[parameter.name] = parameter_view(values, parameter);
    }
    const std::lock_guard guard(lock);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

double tolerance_of(const EngineOptions& options) {
  const double values = options.precision == Precision::bf16   ? 4e-2
                        : options.precision == Precision::fp16 ? 6e-3
                                                               : 5e-5;
  return std::max(values, options.reduce_dtype == at::kBFloat16 ? 8e-3 : 0.0);
}

std::string describe(const Case& c) {
  const EngineOptions& o = c.options;
  return cat(c.ranks, " ranks, ulysses ", o.ulysses, ", ring ", o.ring, ", chunks ", o.head_chunks,
             c.packed ? ", packed" : "", ", ZeRO ", int(o.zero), ", offload ", int(o.offload.parameters),
             int(o.offload.optimizer), int(o.offload.activations), ", recompute ", int(o.recompute),
             " every ", o.checkpoint_every, " fraction ", o.keep_fraction, ", tiles ", o.tile_tokens, "/",
             o.logits_tile_tokens, ", precision ", int(o.precision), ", states ", o.optimizer.state_dtype,
             ", reduce ", o.reduce_dtype, ", in backward ", o.update_in_backward, ", micro-batches ",
             c.micro);
}

class PolicyCombinations : public ::testing::Test {
 protected:
  void SetUp() override {
    Json config = testing::tiny_llama_config();
    config["num_hidden_layers"] = kLayers;
    testing::write_tiny_model(model_.path(), config);
  }
  // The plain run: one rank, nothing sharded, offloaded, recomputed or tiled.
  static Case plain(const Case& of) {
    const EngineOptions& like = of.options;
    Case c;
    c.packed = of.packed;
    c.options.recompute = Recompute::none;
    c.options.tile_tokens = c.options.logits_tile_tokens = 1000;
    c.options.precision = like.precision;
    c.options.optimizer.max_grad_norm = like.optimizer.max_grad_norm;
    c.options.loss_scale = like.loss_scale;
    return c;
  }
  const Outcome& plain_outcome(const Case& like, OptimizerKind optimizer, int steps) {
    const auto key =
        std::tuple(like.options.precision, like.options.optimizer.max_grad_norm, optimizer, like.packed);
    auto& found = plain_[key];
    if (found.losses.empty()) found = run(model_.path(), plain(like), optimizer, steps);
    return found;
  }

  TemporaryFolder model_, disk_;
  std::map<std::tuple<Precision, double, OptimizerKind, bool>, Outcome> plain_;
};

TEST_F(PolicyCombinations, every_pair_of_choices_gives_the_numbers_of_the_plain_run) {
  const std::vector<Row> rows = covering_rows(disk_.path());
  ASSERT_GE(rows.size(), 16U);
  for (const Row& row : rows) {
    const Case c = *case_of(row, disk_.path());
    SCOPED_TRACE(describe(c));
    const double tolerance = tolerance_of(c.options);

    const Outcome sgd = run(model_.path(), c, OptimizerKind::sgd, 5);
    const Outcome& plain_sgd = plain_outcome(c, OptimizerKind::sgd, 5);
    for (const auto& [name, gradient] : sgd.gradients)
      EXPECT_LT(testing::relative_error(gradient, plain_sgd.gradients.at(name)), tolerance) << name;
    for (const auto& [name, weights] : sgd.weights)
      EXPECT_LT(testing::relative_error(weights, plain_sgd.weights.at(name)), tolerance) << name;

    const Outcome adamw = run(model_.path(), c, OptimizerKind::adamw, 2);
    const Outcome& plain_adamw = plain_outcome(c, OptimizerKind::adamw, 2);
    for (size_t step = 0; step < adamw.losses.size(); ++step)
      EXPECT_NEAR(adamw.losses[step] / plain_adamw.losses[step], 1, tolerance) << "step " << step;
    if (HasFailure()) return;
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path())) << "files were left behind";
}

TEST_F(PolicyCombinations, offload_to_disk_is_bitwise_equal_to_none) {
  Case resident;
  resident.ranks = 2;
  resident.options.ulysses = 2;
  resident.options.zero = ZeroStage::parameters;
  resident.options.precision = Precision::bf16;
  Case disk = resident;
  disk.options.offload = {Offload::disk, Offload::disk, Offload::disk, disk_.path(), 0};
  const Outcome a = run(model_.path(), resident, OptimizerKind::adamw, 3);
  const Outcome b = run(model_.path(), disk, OptimizerKind::adamw, 3);
  EXPECT_EQ(a.losses, b.losses);
  for (const auto& [name, weights] : a.weights) EXPECT_TRUE(at::equal(weights, b.weights.at(name))) << name;
}

TEST_F(PolicyCombinations, stages_are_bitwise_equal_without_accumulation) {
  Case none;
  none.ranks = 3;
  none.options.ulysses = 3;
  const Outcome expected = run(model_.path(), none, OptimizerKind::sgd, 3);
  for (const ZeroStage stage : {ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::parameters}) {
    Case c = none;
    c.options.zero = stage;
    const Outcome got = run(model_.path(), c, OptimizerKind::sgd, 3);
    EXPECT_EQ(got.losses, expected.losses) << int(stage);
    for (const auto& [name, gradient] : expected.gradients)
      EXPECT_TRUE(at::equal(gradient, got.gradients.at(name))) << name << ", stage " << int(stage);
  }
}

TEST_F(PolicyCombinations, a_disk_that_is_too_small_is_told_before_the_first_step) {
  run_ranks_as_threads(1, [&](World& world) {
    EngineOptions options;
    options.offload.optimizer = Offload::disk;
    options.offload.folder = disk_.path();
    options.offload.limit_bytes = 10000;
    EXPECT_THROW(assemble(world, model_.path(), options), ConfigError);
  });
}

TEST(EngineOptions, combinations_that_mean_nothing_are_refused) {
  const auto refused = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options;
    change(options);
    try {
      check_engine_options(options);
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused([](EngineOptions&) {}));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.recompute = Recompute::none;
    o.offload.activations = Offload::cpu;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.activations = Offload::disk; })) << "without a folder";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.folder = "somewhere"; })) << "with nothing on disk";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.parameters = Offload::cpu; })) << "without ZeRO 3";
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.update_in_backward = true;
    o.optimizer.max_grad_norm = 1;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.update_in_backward = true;
    o.precision = Precision::fp16;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.optimizer.kind = OptimizerKind::sgd;
    o.offload.optimizer = Offload::cpu;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.optimizer.kind = OptimizerKind::sgd;
    o.optimizer.state_dtype = at::kBFloat16;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.purpose = Purpose::evaluation;
    o.zero = ZeroStage::gradients;
  }));
}

}  // namespace
}  // namespace trireme::policy_combinations_test
