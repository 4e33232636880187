// Training whose optimizer lies elsewhere, so that units are stepped beside the pass, is bit for bit training
// whose optimizer lies beside the values: losses, norms, weights, moments, whenever one looks. And the pass
// does go on meanwhile.
#include <atomic>
#include <map>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/gate.h"
#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

using testing::Gate;
using testing::TemporaryFolder;

constexpr int64_t kVocabulary = 70;

void write_three_layers(const std::filesystem::path& folder, bool tied) {
  Json config = testing::tiny_llama_config();
  config["num_hidden_layers"] = 3;
  config["tie_word_embeddings"] = tied;
  testing::write_tiny_model(folder, config);
}

// Of every unit, copied.
using States = std::map<std::string, std::vector<at::Tensor>>;
States states_of(Engine& engine) {
  States states;
  for (const std::string& name : engine.state_names())
    for (size_t unit = 0; unit < engine.layout().units.size(); ++unit)
      states[name].push_back(engine.unit_state(static_cast<int>(unit), name).clone());
  return states;
}

void expect_equal(const States& got, const States& expected, const char* when) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, units] : expected)
    for (size_t unit = 0; unit < units.size(); ++unit)
      EXPECT_TRUE(at::equal(got.at(name).at(unit), units[unit]))
          << name << " of unit " << unit << ", " << when;
}

struct Outcome {
  std::vector<double> numbers;  // losses, norms, loss scales
  States first, last;           // right after the first step, and after the last
  std::map<std::string, at::Tensor> gradients;
  int skipped = 0;
};

Outcome train(const std::filesystem::path& model, const EngineOptions& options, int ranks) {
  Outcome outcome;
  run_ranks_as_threads(ranks, [&](World& world) {
    at::set_num_threads(1);  // steps of a millisecond gain nothing from more
    const auto engine = assemble(world, model, options);
    const auto batches = [&](uint64_t step) {
      StepBatches of_step;
      const uint64_t micro_batches = options.update_in_backward ? 1 : 2;
      for (uint64_t micro = 0; micro < micro_batches; ++micro)
        of_step.push_back(testing::slice_of_batch(1, 26, kVocabulary, 2 * step + micro, ranks, world.rank()));
      return of_step;
    };
    Outcome mine;
    const auto step = [&](uint64_t number) {
      const StepResult result = engine->train_step(batches(number), 3e-3);
      mine.skipped += result.skipped ? 1 : 0;
      mine.numbers.insert(mine.numbers.end(), {result.loss, result.loss_scale});
      // That of gradients that overflow is no number.
      if (!result.skipped) mine.numbers.push_back(result.gradient_norm);
    };
    step(0);
    mine.first = states_of(*engine);
    for (uint64_t number = 1; number < 4; ++number) step(number);
    // Reads the weights that the last step is still making, unit by unit.
    mine.numbers.push_back(engine->evaluate(batches(9)[0]).loss_sum);
    step(4);
    if (!options.update_in_backward) {
      // Twice: what is there from the step, or from the first time, must not be added to.
      for (int time = 0; time < 2; ++time)
        mine.numbers.push_back(engine->accumulate_gradients(batches(5)).gradient_norm);
      mine.gradients = testing::all_gradients(*engine);
      step(5);
    }
    mine.last = states_of(*engine);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

class OffloadedUpdate : public ::testing::Test {
 protected:
  OffloadedUpdate() { write_three_layers(model_.path(), false); }

  // Of both.
  Outcome expect_same(const std::filesystem::path& model, const EngineOptions& plain, EngineOptions offloaded,
                      int ranks) {
    if (uses_disk(offloaded.offload)) offloaded.offload.folder = disk_.path();
    const Outcome expected = train(model, plain, ranks);
    Outcome got = train(model, offloaded, ranks);
    EXPECT_EQ(got.numbers, expected.numbers);
    expect_equal(got.first, expected.first, "right after the first step");
    expect_equal(got.last, expected.last, "after the last step");
    for (const auto& [name, gradient] : expected.gradients)
      EXPECT_TRUE(at::equal(got.gradients.at(name), gradient)) << name;
    return got;
  }

  TemporaryFolder model_, disk_;
};

TEST_F(OffloadedUpdate, is_bitwise_the_update_beside_the_values_at_every_stage) {
  TemporaryFolder told;  // a model with a unit of what layers are told
  testing::write_tiny_model(told.path(), testing::tiny_gemma4_e2b_config());
  for (const int ranks : {1, 2})
    for (int stage = 0; stage <= 3; ++stage)
      for (const bool in_backward : {false, true}) {
        SCOPED_TRACE(cat(ranks, " ranks, ZeRO ", stage, in_backward ? ", in backward" : ""));
        EngineOptions plain;
        plain.ulysses = ranks;
        plain.zero = static_cast<ZeroStage>(stage);
        plain.update_in_backward = in_backward;
        plain.optimizer.weight_decay = 0.1;
        plain.optimizer.max_grad_norm = in_backward ? 0 : 0.3;
        EngineOptions offloaded = plain;
        offloaded.offload.optimizer = Offload::disk;
        expect_same(model_.path(), plain, offloaded, ranks);
        expect_same(told.path(), plain, offloaded, ranks);
      }
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path())) << "files were left behind";
}

TEST_F(OffloadedUpdate, is_so_with_masters_beside_values_of_16_bits_a_tied_matrix_and_parameters_on_disk) {
  const TemporaryFolder tied;
  write_three_layers(tied.path(), true);
  for (const int ranks : {1, 2})
    for (const int stage : {0, 2, 3})
      for (const bool in_backward : {false, true}) {
        SCOPED_TRACE(cat(ranks, " ranks, ZeRO ", stage, in_backward ? ", in backward" : ""));
        EngineOptions plain;
        plain.precision = Precision::bf16;
        plain.bf16_matmul = Bf16Matmul::native;
        plain.ulysses = ranks;
        plain.zero = static_cast<ZeroStage>(stage);
        plain.update_in_backward = in_backward;
        plain.optimizer.state_dtype = at::kBFloat16;
        plain.optimizer.max_grad_norm = in_backward ? 0 : 0.3;
        EngineOptions offloaded = plain;
        offloaded.offload.optimizer = stage == 2 ? Offload::cpu : Offload::disk;
        if (stage == 3) offloaded.offload.parameters = Offload::disk;
        expect_same(tied.path(), plain, offloaded, ranks);
      }
}

// Split where both lie together, else fp32 beside the values (shard/master_share.h).
TEST_F(OffloadedUpdate, is_so_wherever_masters_and_values_of_bf16_lie) {
  EngineOptions plain;
  plain.precision = Precision::bf16;
  plain.bf16_matmul = Bf16Matmul::native;
  plain.ulysses = 2;
  plain.zero = ZeroStage::parameters;
  constexpr Offload kAll[] = {Offload::none, Offload::cpu, Offload::disk};
  for (const Offload parameters : kAll)
    for (const Offload optimizer : kAll) {
      SCOPED_TRACE(cat("parameters ", name_of(parameters), ", optimizer ", name_of(optimizer)));
      EngineOptions offloaded = plain;
      offloaded.offload.parameters = parameters;
      offloaded.offload.optimizer = optimizer;
      expect_same(model_.path(), plain, offloaded, 2);
    }
}

TEST_F(OffloadedUpdate, is_so_where_fp16_skips_steps_that_overflow) {
  EngineOptions plain;
  plain.precision = Precision::fp16;
  plain.ulysses = 2;
  plain.zero = ZeroStage::optimizer;
  plain.loss_scale = {.initial = 0x1p19, .growth_steps = 100};
  EngineOptions offloaded = plain;
  offloaded.offload.optimizer = Offload::disk;
  const Outcome outcome = expect_same(model_.path(), plain, offloaded, 2);
  EXPECT_GT(outcome.skipped, 0);
  EXPECT_LT(outcome.skipped, 4);
}

// Counts the matrix products of the thread of the pass and the units stepped on any thread, and holds one
// such step until the pass has made more products than `products_before`.
struct KernelWatch {
  std::thread::id pass_thread;
  std::atomic<int> products = 0, updates = 0;
  std::atomic<int> products_at_first_update = -1;
  int held_update = 0;  // counted from 1; 0: none
  int products_before = 0;
  Gate pass_went_on;
  std::atomic<bool> saw_pass_go_on = false;
};

// libtorch's callback and the optimizer below find what they fill here.
std::atomic<KernelWatch*> kernel_watch = nullptr;

std::unique_ptr<at::ObserverContext> see_kernel(const at::RecordFunction& function) {
  KernelWatch& watch = *kernel_watch;
  const std::string name = function.name();
  if (std::this_thread::get_id() == watch.pass_thread &&
      (name == "aten::mm" || name.starts_with("aten::addmm")) && ++watch.products > watch.products_before)
    watch.pass_went_on.open();
  return nullptr;
}

class WatchedMomentum final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(const FlatUnit&, StepTensors& tensors, const StepNumbers& numbers) const override {
    KernelWatch& watch = *kernel_watch;
    int none = -1;
    watch.products_at_first_update.compare_exchange_strong(none, watch.products);
    if (++watch.updates == watch.held_update) watch.saw_pass_go_on = watch.pass_went_on.wait();
    tensors.master.sub_(tensors.states[0].add_(tensors.gradient), numbers.learning_rate);
  }
};

// Two steps of one rank.
void train_watched(const std::filesystem::path& model, const EngineOptions& options, KernelWatch& watch) {
  kernel_watch = &watch;
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(see_kernel).scopes({at::RecordScope::FUNCTION}));
  run_ranks_as_threads(1, [&](World& world) {
    watch.pass_thread = std::this_thread::get_id();
    const auto engine = assemble(world, model, options);
    for (uint64_t step = 0; step < 2; ++step)
      engine->train_step({testing::slice_of_batch(1, 26, kVocabulary, step, 1, 0)}, 3e-3);
    engine->unit_values(0);
  });
  at::removeCallback(handle);
}

TEST_F(OffloadedUpdate, goes_on_beside_the_next_forward_or_the_rest_of_the_backward) {
  for (const bool in_backward : {false, true}) {
    SCOPED_TRACE(in_backward ? "in backward" : "after backward");
    const OptimizerKind watched{
        .name = "watched", .state_names = {"momentum"}, .make = make_optimizer<WatchedMomentum>};
    EngineOptions options;
    options.optimizer.kind = &watched;
    options.update_in_backward = in_backward;
    KernelWatch plain;
    train_watched(model_.path(), options, plain);
    ASSERT_GT(plain.products_at_first_update, 0);
    ASSERT_GT(plain.products, plain.products_at_first_update);

    options.offload.optimizer = Offload::disk;
    options.offload.folder = disk_.path();
    KernelWatch watch;
    watch.products_before = plain.products_at_first_update;
    // In backward that of the head, which is first. Else that of the second layer, after the embedding's.
    watch.held_update = in_backward ? 1 : 3;
    train_watched(model_.path(), options, watch);
    EXPECT_TRUE(watch.saw_pass_go_on) << "the pass waited for an update that it had no use for";
    EXPECT_EQ(watch.products, plain.products);
    EXPECT_EQ(watch.updates, plain.updates);
  }
}

}  // namespace
}  // namespace trireme
