#include "tests/engine/policy_cases.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/model/unit_weights.h"

#include "tests/engine/tiny_model.h"

namespace trireme::testing {
namespace {

constexpr int64_t kLayers = 3;
constexpr int64_t kVocabulary = 70;
// Folders beside the model's files: of LoRA alone, and with modules trained whole.
constexpr std::array kAdapters{"", "adapter", "adapter-and-whole-modules"};

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
  kParts,
  kTile,
  kLogitsTile,
  kPrecision,
  kState,
  kReduce,
  kInBackward,
  kMicro,
  kAdapter,
  kChoiceCount
};
constexpr std::array<int, kChoiceCount> kChoices{4, 4, 2, 2, 4, 3, 3, 3, 3, 3, 2, 3, 3, 2, 3, 2, 2, 2, 2, 3};
using Row = std::array<int, kChoiceCount>;

// What a row means, or nothing where it is no valid combination.
std::optional<PolicyCase> case_of(const Row& row, const std::filesystem::path& folder) {
  PolicyCase result;
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
  result.adapter = kAdapters[static_cast<size_t>(row[kAdapter])];
  const int dp = result.ranks / (o.ulysses * o.ring);
  if (4 % dp != 0) return std::nullopt;
  o.zero = static_cast<ZeroStage>(row[kZero]);
  o.offload.parameters = static_cast<Offload>(row[kParameters]);
  o.offload.optimizer = static_cast<Offload>(row[kOptimizer]);
  o.offload.activations = static_cast<Offload>(row[kActivations]);
  if (uses_disk(o.offload)) o.offload.folder = folder;
  o.recompute.policy = static_cast<Recompute>(row[kRecompute]);
  o.recompute.checkpoint_every = std::array{1, 2, 9}[static_cast<size_t>(row[kEvery])];
  o.recompute.keep_fraction = row[kFraction] == 0 ? 1 : 0.4;
  o.recompute.keep_qkv_fraction = std::array{0.0, 1.0, 0.4}[static_cast<size_t>(row[kParts])];
  o.recompute.keep_mlp_fraction = std::array{0.0, 0.4, 1.0}[static_cast<size_t>(row[kParts])];
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

}  // namespace

std::vector<PolicyCase> every_pair_of_policies(const std::filesystem::path& folder) {
  std::vector<PolicyCase> cases;
  for (const Row& row : covering_rows(folder)) cases.push_back(*case_of(row, folder));
  return cases;
}

PolicyOutcome run_policy(const std::filesystem::path& model, const PolicyCase& policy,
                         const OptimizerKind& optimizer, int steps) {
  PolicyOutcome outcome;
  std::mutex lock;
  run_ranks_as_threads(policy.ranks, [&](World& world) {
    EngineOptions options = policy.options;
    options.optimizer.kind = &optimizer;
    if (!policy.adapter.empty()) options.lora.adapter = model / policy.adapter;
    if (optimizer.name == "sgd") {
      options.optimizer.state_dtype = at::kFloat;
      options.offload.optimizer = Offload::none;  // on fp32 values it keeps nothing to offload
      if (!uses_disk(options.offload)) options.offload.folder.clear();
    }
    // As large as AdamW's own part of an update of these weights.
    if (optimizer.name == "adamw_torch") options.optimizer.weight_decay = 5;
    const auto engine = assemble(world, model, options);
    const Mesh& mesh = engine->mesh();
    const int batch = 4 / mesh.dp_size / policy.micro;
    const auto batches_of = [&](int step) {
      StepBatches batches;
      for (int micro = 0; micro < policy.micro; ++micro) {
        // Sample n of the step is the same tokens however the samples are dealt out.
        std::vector<at::Tensor> tokens, targets;
        std::vector<Documents> documents;
        TokenBatch one;
        for (int at = 0; at < batch; ++at) {
          const int sample = (mesh.dp_index * policy.micro + micro) * batch + at;
          std::vector<Documents> pack;
          if (policy.packed) pack.emplace_back(std::vector<int64_t>{0, 1 + sample, 19, 29});
          one =
              slice_of_batch(1, kVocabulary, static_cast<uint64_t>(step) * 4 + static_cast<uint64_t>(sample),
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
    const auto weights = [&] {
      std::map<std::string, at::Tensor> all;
      for (size_t unit = 0; unit < engine->layout().trained().size(); ++unit) {
        const at::Tensor values =
            engine->unit_values(static_cast<int>(unit)).to(at::kCPU, at::kFloat).clone();
        for (const ParameterSpec& parameter : engine->layout().trained()[unit].parameters)
          all[parameter.name] = parameter_view(values, parameter);
      }
      return all;
    };
    PolicyOutcome mine;
    mine.weights_before = weights();
    if (!options.update_in_backward) {
      engine->accumulate_gradients(batches_of(0));
      for (const auto& [name, gradient] : all_gradients(*engine))
        mine.gradients[name] = gradient.to(at::kCPU);
    }
    for (int step = 0; step < steps; ++step)
      mine.losses.push_back(engine->train_step(batches_of(step), optimizer.name == "sgd" ? 0.3 : 1e-3).loss);
    mine.weights = weights();
    const std::lock_guard guard(lock);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

const PolicyOutcome& PlainRuns::of(const PolicyCase& policy, const OptimizerKind& optimizer, int steps) {
  const EngineOptions& like = policy.options;
  PolicyOutcome& found = runs_[{like.precision, like.optimizer.max_grad_norm, optimizer.name, policy.packed,
                                policy.adapter, steps}];
  if (!found.losses.empty()) return found;
  PolicyCase plain;
  plain.packed = policy.packed;
  plain.adapter = policy.adapter;
  plain.options.recompute.policy = Recompute::none;
  plain.options.tile_tokens = plain.options.logits_tile_tokens = 1000;
  plain.options.precision = like.precision;
  plain.options.optimizer.max_grad_norm = like.optimizer.max_grad_norm;
  plain.options.loss_scale = like.loss_scale;
  found = run_policy(model_, plain, optimizer, steps);
  return found;
}

double tolerance_of(const PolicyCase& policy) {
  const Precision precision = policy.options.precision;
  const double values = precision == Precision::bf16 ? 4e-2 : precision == Precision::fp16 ? 6e-3 : 5e-5;
  // A gradient of LoRA has so few entries that none stands out, by which the others' rounding would be small:
  // of PEFT in plain bf16 the worst is 1.5 times as far off as the worst of a whole model's.
  const double entries = !policy.adapter.empty() && precision != Precision::fp32 ? 3 : 1;
  return std::max(entries * values, policy.options.reduce_dtype == at::kBFloat16 ? 8e-3 : 0.0);
}

double change_error(const PolicyOutcome& outcome, const PolicyOutcome& plain) {
  double worst = 0, vectors = 0, way_of_vectors = 0;
  for (const auto& [name, weights] : plain.weights) {
    const double way = (weights - plain.weights_before.at(name)).norm().item<double>();
    const double error = (outcome.weights.at(name) - weights).norm().item<double>();
    if (weights.dim() == 1 && name.starts_with(kAdapterPrefix)) {
      vectors += error * error;
      way_of_vectors += way * way;
    } else {
      worst = std::max(worst, error / way);
    }
  }
  return way_of_vectors > 0 ? std::max(worst, std::sqrt(vectors / way_of_vectors)) : worst;
}

double change_tolerance_of(const PolicyCase& policy) {
  const EngineOptions& o = policy.options;
  if (o.precision == Precision::bf16) return 0.3;
  const bool narrow = o.optimizer.state_dtype == at::kBFloat16 || o.reduce_dtype == at::kBFloat16;
  const double entries = policy.adapter.empty() ? 1 : 1.5;  // as in tolerance_of
  return o.precision == Precision::fp16 || narrow ? 0.1 * entries : 0.02;
}

std::string describe(const PolicyCase& policy) {
  const EngineOptions& o = policy.options;
  return cat(policy.ranks, " ranks, ulysses ", o.ulysses, ", ring ", o.ring, ", chunks ", o.head_chunks,
             policy.packed ? ", packed" : "", ", ZeRO ", int(o.zero), ", offload ", int(o.offload.parameters),
             int(o.offload.optimizer), int(o.offload.activations), ", recompute ", int(o.recompute.policy),
             " every ", o.recompute.checkpoint_every, " fractions ", o.recompute.keep_fraction, "/",
             o.recompute.keep_qkv_fraction, "/", o.recompute.keep_mlp_fraction, ", tiles ", o.tile_tokens,
             "/", o.logits_tile_tokens, ", precision ", int(o.precision), ", states ",
             o.optimizer.state_dtype, ", reduce ", o.reduce_dtype, ", in backward ", o.update_in_backward,
             ", micro-batches ", policy.micro, policy.adapter.empty() ? "" : ", ", policy.adapter);
}

void write_policy_model(const std::filesystem::path& folder) {
  Json config = tiny_llama_config();
  config["num_hidden_layers"] = kLayers;
  write_tiny_model(folder, config);
  LoraConfig lora{.rank = 3, .alpha = 4, .targets = {"all-linear"}};
  write_tiny_adapter(folder, folder / kAdapters[1], lora);
  lora.modules_to_save = {"embed_tokens", "lm_head", "norm"};
  write_tiny_adapter(folder, folder / kAdapters[2], lora);
}

}  // namespace trireme::testing
