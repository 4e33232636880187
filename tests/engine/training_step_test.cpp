// Updates: SGD and AdamW against formulas written here in fp64, clipping, weight decay's exceptions, several
// ranks.
#include <mutex>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/unit_weights.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/relative_error.h"

namespace trireme::training_step_test {
namespace {

using testing::TemporaryFolder;

std::map<std::string, at::Tensor> all_values(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  for (size_t unit = 0; unit < engine.layout().units.size(); ++unit)
    for (const ParameterSpec& parameter : engine.layout().units[unit].parameters)
      values[parameter.name] = parameter_view(engine.unit_values(static_cast<int>(unit)), parameter)
                                   .to(at::kDouble, false, /*copy=*/true);
  return values;
}

TEST(TrainingStep, sgd_gives_the_same_weights_after_five_steps_on_any_number_of_ranks) {
  for (const bool tied : {false, true}) {
    TemporaryFolder folder;
    Json config = testing::tiny_llama_config();
    config["tie_word_embeddings"] = tied;
    testing::write_tiny_model(folder.path(), config);
    std::map<std::string, at::Tensor> one;
    for (const int ranks : {1, 2, 3}) {
      EngineOptions options;
      options.ulysses = ranks;
      options.optimizer.kind = &find_optimizer("sgd");
      options.optimizer.weight_decay = 0.1;
      options.optimizer.max_grad_norm = 0.5;
      std::mutex lock;
      run_ranks_as_threads(ranks, [&](World& world) {
        const auto engine = assemble(world, folder.path(), options);
        for (uint64_t step = 0; step < 5; ++step)
          engine->train_step({testing::slice_of_batch(2, 33, 70, step, ranks, world.rank())}, 0.5);
        const std::lock_guard guard(lock);
        const auto values = all_values(*engine);
        if (ranks == 1) one = values;
        for (const auto& [name, value] : values)
          EXPECT_LT(testing::relative_error(value, one.at(name)), 2e-5) << name << ", ranks " << ranks;
      });
    }
  }
}

TEST(TrainingStep, adamw_follows_its_formula_and_decays_neither_norms_nor_biases) {
  TemporaryFolder folder;
  Json config = testing::tiny_llama_config();
  config["attention_bias"] = true;
  testing::write_tiny_model(folder.path(), config);
  EngineOptions options;
  options.optimizer.weight_decay = 0.3;
  options.optimizer.beta2 = 0.95;
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder.path(), options);
    auto expected = all_values(*engine);
    std::map<std::string, at::Tensor> mean, square;
    for (const auto& [name, value] : expected) {
      mean[name] = at::zeros_like(value);
      square[name] = at::zeros_like(value);
    }
    constexpr double kRate = 0.01;
    for (int step = 1; step <= 3; ++step) {
      const StepBatches batches = {testing::slice_of_batch(1, 40, 70, step, 1, 0)};
      engine->accumulate_gradients(batches);
      const auto gradients = testing::all_gradients(*engine);
      engine->train_step(batches, kRate);
      const auto values = all_values(*engine);
      for (auto& [name, value] : expected) {
        const at::Tensor g = gradients.at(name).to(at::kDouble);
        mean[name] = mean[name] * 0.9 + g * 0.1;
        square[name] = square[name] * 0.95 + g * g * 0.05;
        const bool decays = value.dim() == 2;
        value = value * (decays ? 1 - kRate * 0.3 : 1.0);
        value = value - kRate * (mean[name] / (1 - std::pow(0.9, step))) /
                            ((square[name] / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
        EXPECT_LT(testing::relative_error(values.at(name), value), 1e-5) << name << " step " << step;
        value = values.at(name);
      }
    }
  });
}

TEST(TrainingStep, clipping_scales_the_update_and_reports_the_norm_before_it) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  const auto moved = [&](double limit, double* norm) {
    double length = 0;
    run_ranks_as_threads(1, [&](World& world) {
      EngineOptions options;
      options.optimizer.kind = &find_optimizer("sgd");
      options.optimizer.max_grad_norm = limit;
      const auto engine = assemble(world, folder.path(), options);
      const auto before = all_values(*engine);
      *norm = engine->train_step({testing::slice_of_batch(1, 40, 70, 3, 1, 0)}, 1.0).gradient_norm;
      for (const auto& [name, value] : all_values(*engine))
        length += (value - before.at(name)).pow(2).sum().item<double>();
    });
    return std::sqrt(length);
  };
  double free_norm = 0, clipped_norm = 0;
  const double free_length = moved(0, &free_norm), clipped_length = moved(0.01, &clipped_norm);
  EXPECT_NEAR(free_length / free_norm, 1, 1e-4);
  EXPECT_NEAR(clipped_length, 0.01, 1e-5);
  EXPECT_EQ(free_norm, clipped_norm);
}

TEST(TrainingStep, evaluation_gives_the_training_loss_and_touches_nothing) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  for (const int ranks : {1, 3}) {
    EngineOptions options;
    options.ulysses = ranks;
    run_ranks_as_threads(ranks, [&](World& world) {
      const auto engine = assemble(world, folder.path(), options);
      const TokenBatch batch = testing::slice_of_batch(2, 50, 70, 5, ranks, world.rank());
      const StepResult step = engine->accumulate_gradients({batch});
      int64_t rows = 0;
      const EvaluationResult evaluation =
          engine->evaluate(batch, [&](int64_t first, const at::Tensor& logits) {
            EXPECT_EQ(first, rows);
            rows += logits.size(0);
          });
      EXPECT_EQ(rows, batch.tokens.numel());
      EXPECT_EQ(evaluation.target_tokens, step.target_tokens);
      EXPECT_NEAR(evaluation.loss_sum / static_cast<double>(evaluation.target_tokens) / step.loss, 1, 1e-6);
      EXPECT_EQ(evaluation.loss_Bs.sizes(), batch.tokens.sizes());
    });
  }
}

}  // namespace
}  // namespace trireme::training_step_test
