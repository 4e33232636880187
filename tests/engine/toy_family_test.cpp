// A model family and an optimizer that come from outside the tree, each one file: they train and are saved as
// the built-in ones are. Gradients are held to the same formulas written out whole under autograd in fp64.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/model_family.h"
#include "trireme/model/unit_weights.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"
#include "tests/support/relative_error.h"
#include "tests/support/source_folder.h"

namespace trireme {

const ModelFamily& toy_family();
const OptimizerKind& toy_optimizer();

namespace toy_family_test {
namespace {

using testing::relative_error;
using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kBatch = 2, kTokens = 37, kVocabulary = 70, kLayers = 2, kM = 32, kH = 4, kK = 2, kD = 8;

const ModelFamilies& families() {
  static const ModelFamilies all = [] {
    ModelFamilies families = model_families();
    families.push_back(&toy_family());
    return families;
  }();
  return all;
}

at::Tensor written_norm(const at::Tensor& x, const Named& w, const std::string& name) {
  const at::Tensor centered = x - x.mean(-1, true);
  return centered / at::sqrt(centered.square().mean(-1, true) + 1e-5) * w.at(name + ".weight") +
         w.at(name + ".bias");
}

// x [B, S, heads, D]
at::Tensor written_rotary(const at::Tensor& x) {
  const at::Tensor inverse = at::pow(10000.0, -at::arange(0, kD, 2, at::kDouble) / kD);
  const at::Tensor angles = at::arange(kTokens, at::kDouble).unsqueeze(1) * inverse;
  const at::Tensor cos = angles.cos().unsqueeze(1), sin = angles.sin().unsqueeze(1);
  const at::Tensor first = x.narrow(3, 0, kD / 2), second = x.narrow(3, kD / 2, kD / 2);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, 3);
}

// The mean loss of a batch of whole samples.
at::Tensor written_loss(const Named& w, const TokenBatch& batch) {
  at::Tensor x = w.at("words.weight").index_select(0, batch.tokens.flatten()).view({kBatch, kTokens, kM});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = cat("layers.", layer, ".");
    const auto weight = [&](const char* name) { return w.at(prefix + name + ".weight"); };
    const at::Tensor n = written_norm(x, w, prefix + "norm");
    const auto heads = [&](const char* name, int64_t count) {
      return at::matmul(n, weight(name).t()).view({kBatch, kTokens, count, kD});
    };
    const at::Tensor q = written_rotary(heads("q", kH)).transpose(1, 2);
    const auto shared = [](const at::Tensor& kv) { return kv.repeat_interleave(kH / kK, 2).transpose(1, 2); };
    const at::Tensor k = shared(written_rotary(heads("k", kK))), v = shared(heads("v", kK));
    const at::Tensor later = at::ones({kTokens, kTokens}, at::kBool).triu(1);
    const at::Tensor scores =
        (at::matmul(q, k.transpose(2, 3)) / std::sqrt(kD)).masked_fill(later, -INFINITY);
    const at::Tensor o = at::matmul(at::softmax(scores, 3), v).transpose(1, 2).flatten(2);
    const at::Tensor up = at::matmul(n, weight("up").t()) + w.at(prefix + "up.bias");
    const at::Tensor act = up * 0.5 * (1 + at::erf(up * M_SQRT1_2));
    x = x + at::matmul(o, weight("out").t()) + at::matmul(act, weight("down").t()) +
        w.at(prefix + "down.bias");
  }
  const at::Tensor logits =
      at::matmul(written_norm(x, w, "head.norm"), w.at("head.matrix.weight").t()).flatten(0, 1);
  const at::Tensor targets = batch.targets.flatten(), valid = targets.ge(0);
  const at::Tensor picked = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return ((at::logsumexp(logits, 1) - picked) * valid).sum() / valid.sum();
}

class ToyFamily : public ::testing::Test {
 protected:
  ToyFamily() { testing::write_tiny_model(folder_.path(), {{"model_type", "toy"}}, 0.15, families()); }

  static EngineOptions options_of(int ranks) {
    EngineOptions options;
    options.ulysses = ranks;
    options.tile_tokens = 11;
    options.logits_tile_tokens = 13;
    return options;
  }
  template <typename Body>
  void with_engines(const EngineOptions& options, const Body& body) const {
    run_ranks_as_threads(options.ulysses, [&](World& world) {
      body(*assemble(world, folder_.path(), options, families()), world.rank());
    });
  }
  static StepBatches batches_of(int step, int ranks, int rank) {
    return {testing::slice_of_batch(kBatch, kTokens, kVocabulary, static_cast<uint64_t>(step), ranks, rank)};
  }
  // Leaves, by their names behind "toy.".
  static Named leaves(const std::filesystem::path& folder) {
    Named result;
    const ModelLayout layout = make_model_layout(read_model_config(folder, families()));
    const CheckpointReader reader(folder);
    for (const UnitSpec& unit : layout.units) {
      at::Tensor flat = at::zeros({unit.elements}, at::kDouble);
      reader.read_unit(unit, flat);
      for (const ParameterSpec& spec : unit.parameters)
        result[spec.name.substr(4)] = parameter_view(flat, spec).clone().requires_grad_(true);
    }
    return result;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ToyFamily, loss_and_gradients_equal_autograd_on_any_number_of_ranks_whatever_is_kept) {
  Named truth = leaves(folder_.path());
  const at::Tensor loss = written_loss(truth, batches_of(1, 1, 0)[0]);
  loss.backward();
  for (const int ranks : {1, 2})
    for (const Recompute recompute : {Recompute::none, Recompute::keep_attention, Recompute::full}) {
      EngineOptions options = options_of(ranks);
      options.recompute.policy = recompute;
      with_engines(options, [&](Engine& engine, int rank) {
        const StepResult got = engine.accumulate_gradients(batches_of(1, ranks, rank));
        const auto gradients = testing::all_gradients(engine);
        if (rank != 0) return;
        EXPECT_NEAR(got.loss, loss.item<double>(), 1e-5);
        EXPECT_EQ(gradients.size(), truth.size());
        for (const auto& [name, leaf] : truth) {
          EXPECT_GT(leaf.grad().abs().max().item<double>(), 1e-4) << name;
          EXPECT_LT(relative_error(gradients.at("toy." + name), leaf.grad()), 2e-5)
              << name << " on " << ranks << " ranks";
        }
      });
    }
}

TEST_F(ToyFamily, trains_as_the_written_formulas_do_and_reads_back_what_it_saved) {
  constexpr int kSteps = 4;
  constexpr double kRate = 0.3;
  Named truth = leaves(folder_.path());
  for (int step = 0; step < kSteps; ++step) {
    written_loss(truth, batches_of(step, 1, 0)[0]).backward();
    for (auto& [name, leaf] : truth) leaf = (leaf.detach() - kRate * leaf.grad()).requires_grad_(true);
  }
  for (const int ranks : {1, 2}) {
    const testing::TemporaryFolder saved;
    EngineOptions options = options_of(ranks);
    options.optimizer.kind = &find_optimizer("sgd");
    double loss = 0;
    with_engines(options, [&](Engine& engine, int rank) {
      for (int step = 0; step < kSteps; ++step) engine.train_step(batches_of(step, ranks, rank), kRate);
      if (rank == 0)
        write_checkpoint(saved.path(), engine.config(), engine.layout(),
                         [&](int unit) { return engine.unit_values(unit); }, at::kFloat, {});
      const EvaluationResult result = engine.evaluate(batches_of(9, ranks, rank)[0]);
      if (rank == 0) loss = result.loss_sum;
    });
    for (const auto& [name, got] : leaves(saved.path()))
      EXPECT_LT(relative_error(got.detach(), truth.at(name).detach()), 2e-5)
          << name << " on " << ranks << " ranks";
    run_ranks_as_threads(ranks, [&](World& world) {
      const auto engine = assemble(world, saved.path(), options, families());
      EXPECT_EQ(engine->evaluate(batches_of(9, ranks, world.rank())[0]).loss_sum, loss);
    });
  }
}

TEST_F(ToyFamily, trains_under_an_optimizer_of_its_own_that_sees_names_and_shapes_sharded_or_not) {
  const auto trained = [&](ZeroStage zero) {
    std::vector<at::Tensor> values;
    EngineOptions options = options_of(2);
    options.zero = zero;
    options.optimizer.kind = &toy_optimizer();
    with_engines(options, [&](Engine& engine, int rank) {
      EXPECT_EQ(engine.state_names(), (std::vector<std::string>{"master", "momentum"}));
      double first = 0, last = 0;
      for (int step = 0; step < 8; ++step) {
        last = engine.train_step(batches_of(0, 2, rank), 5e-3).loss;
        if (step == 0) first = last;
      }
      EXPECT_LT(last, first - 0.5);
      for (int unit = 0; unit < static_cast<int>(engine.layout().units.size()); ++unit)
        for (const std::string& state : engine.state_names()) {
          const at::Tensor whole = engine.unit_state(unit, state).clone();
          testing::restore_unit(engine, unit, state, whole);
          const at::Tensor restored = engine.unit_state(unit, state).clone();
          EXPECT_TRUE(at::equal(restored, whole));
          if (rank == 0) values.push_back(restored);
        }
    });
    return values;
  };
  const std::vector<at::Tensor> whole = trained(ZeroStage::none), sharded = trained(ZeroStage::optimizer);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(sharded.at(i), whole[i])) << i;
}

TEST_F(ToyFamily, an_optimizer_of_whole_matrices_is_refused_by_name_where_they_would_be_cut) {
  OptimizerKind kind = toy_optimizer();
  kind.name = "of_whole_matrices";
  kind.whole_parameters = true;
  const auto refusal = [&](int ranks, ZeroStage zero) {
    EngineOptions options = options_of(ranks);
    options.zero = zero;
    options.optimizer.kind = &kind;
    return testing::message_of<ConfigError>([&] { with_engines(options, [](Engine&, int) {}); });
  };
  EXPECT_EQ(refusal(2, ZeroStage::none), "no error");
  EXPECT_EQ(refusal(1, ZeroStage::parameters), "no error");
  EXPECT_THAT(
      refusal(2, ZeroStage::optimizer),
      ::testing::AllOf(::testing::HasSubstr("--optim of_whole_matrices"), ::testing::HasSubstr("--zero 1")));
}

TEST_F(ToyFamily, is_unknown_to_those_who_were_not_given_it) {
  EXPECT_THAT(testing::message_of<ConfigError>([&] { read_model_config(folder_.path()); }),
              ::testing::HasSubstr(R"("toy"; Trireme trains llama, )"));
}

// What CONTRIBUTING.md promises: files of the product that name a family or an optimizer.
std::set<std::string> files_with(const std::regex& pattern) {
  std::set<std::string> files;
  const std::filesystem::path root = testing::source_folder();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "trireme")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (std::regex_search(text, pattern)) files.insert(entry.path().lexically_relative(root));
  }
  return files;
}

TEST(FilesToTouch, are_those_of_the_page_for_contributors) {
  using ::testing::ElementsAre;
  EXPECT_THAT(files_with(std::regex("bert_family|families/bert")),
              ElementsAre("trireme/model/CMakeLists.txt", "trireme/model/families/bert.cpp",
                          "trireme/model/families/families.cpp"));
  EXPECT_THAT(
      files_with(std::regex("sgd_optimizer|  sgd\\.cpp")),
      ElementsAre("trireme/shard/CMakeLists.txt", "trireme/shard/optimizers.cpp", "trireme/shard/sgd.cpp"));
  EXPECT_TRUE(
      files_with(
          std::regex("config_?(\\.|->)family\\s*[!=]=\\s*(?!nullptr)\\S|[!=]=\\s*\\S*(llama|bert)_family"))
          .empty())
      << "which family a model is of is asked outside its file";
  std::ifstream in(testing::source_folder() / "CONTRIBUTING.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const char* const row :
       {"| a model family | `trireme/model/families/NAME.cpp`", "| an optimizer | `trireme/shard/NAME.cpp`"})
    EXPECT_THAT(page, ::testing::HasSubstr(row));
}

}  // namespace
}  // namespace toy_family_test
}  // namespace trireme
