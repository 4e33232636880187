// What a user does on a GPU: training, resuming, evaluation, verifying and measuring, on the device under
// test. Without a GPU that is the guarded device, which ends or refuses whatever looks for a tensor on the
// wrong device.
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/verify_reference.h"
#include "trireme/measure/fitted_link.h"
#include "trireme/train/background_save.h"
#include "trireme/train/checkpoint.h"

#include "bench/comm/exchange_rate.h"
#include "tests/engine/attention_under_test.h"
#include "tests/support/device_under_test.h"
#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace trireme::other_device_run_test {
namespace {

using testing::device_under_test, testing::train_on_ranks, testing::TinyOutcome, testing::TinyRun;

struct Way {
  int ranks = 1;
  int ulysses = 1;
  int ring = 1;
  ZeroStage zero = ZeroStage::none;
  Offload parameters = Offload::none;
  Offload optimizer_and_activations = Offload::none;
  Precision precision = Precision::fp32;
};

void set(EngineOptions& options, const Way& way, const std::filesystem::path& folder) {
  options.device = *device_under_test();
  options.ulysses = way.ulysses;
  options.ring = way.ring;
  options.zero = way.zero;
  options.precision = way.precision;
  options.attention = testing::attention_under_test(options.device, way.precision);
  options.offload = {way.parameters, way.optimizer_and_activations, way.optimizer_and_activations,
                     way.parameters == Offload::disk ? folder : std::filesystem::path(), 0};
}

void skip_without_device() {
  if (!device_under_test()) GTEST_SKIP() << "no GPU here";
}

class OnAnotherDevice : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override { skip_without_device(); }
};

class CommandsOnAnotherDevice : public ::testing::Test {
 protected:
  void SetUp() override { skip_without_device(); }
};

// The copies between host and device for which this thread waits, while it lives; one at a time on a thread. Of
// tensors of one dtype, if it is given.
class CopiesSeen {
 public:
  explicit CopiesSeen(RankActivity& activity, std::optional<at::ScalarType> dtype = std::nullopt)
      : activity_(activity), dtype_(dtype) {
    now_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                           if (std::string_view(function.name()) == "aten::copy_")
                                             now_->see(function.inputs());
                                           return std::unique_ptr<at::ObserverContext>();
                                         })
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~CopiesSeen() { at::removeCallback(handle_); }
  CopiesSeen& operator=(CopiesSeen&&) = delete;

  int64_t told() const { return told_; }
  // While the rank's activity was not to wait.
  int64_t untold_from_device() const { return untold_from_device_; }
  int64_t untold_to_device() const { return untold_to_device_; }

 private:
  void see(c10::ArrayRef<const c10::IValue> inputs) {
    const at::Tensor &to = inputs[0].toTensor(), &from = inputs[1].toTensor();
    if (to.is_cpu() == from.is_cpu() || inputs[2].toBool()) return;
    if (from.scalar_type() != dtype_.value_or(from.scalar_type())) return;
    ++(activity_.state().waiting ? told_ : to.is_cpu() ? untold_from_device_ : untold_to_device_);
  }

  inline static thread_local CopiesSeen* now_ = nullptr;
  RankActivity& activity_;
  const std::optional<at::ScalarType> dtype_;
  at::CallbackHandle handle_{};
  int64_t told_ = 0, untold_from_device_ = 0, untold_to_device_ = 0;
};

// Such a copy waits for the exchanges that the device has yet to finish: for other ranks. A rank that did not
// say so would count as hung once one of them is lost.
TEST_P(OnAnotherDevice, saves_and_restores_tell_that_they_wait_where_the_device_may_wait_for_other_ranks) {
  const TinyRun run;
  EngineOptions options;
  set(options, GetParam(), run.folder());
  const RunDirectory saved(run.folder() / "run");
  saved.prepare();
  const int ranks = GetParam().ranks;
  run_ranks_as_threads(ranks, [&](World& world) {
    const auto engine = assemble(world, run.model(), options);
    Agreement agreement = engine->agreement();
    BackgroundSave beside(saved, agreement, world.rank(), ranks);
    const auto contents = [&](int64_t step) {
      return CheckpointContents{step, {{"step", step}}, run.model()};
    };
    const CopiesSeen copies(world.activity());
    save_checkpoint(saved, contents(1), *engine, agreement, 0);
    beside.begin(contents(2), *engine, 0);
    beside.finish();
    EXPECT_EQ(copies.untold_from_device(), 0);
    EXPECT_EQ(copies.untold_to_device(), 0);
    // What is read goes to a device that has nothing to finish, unless ranks exchange it.
    read_checkpoint(saved.checkpoint(1), *engine);
    EXPECT_EQ(copies.untold_from_device(), 0);
    EXPECT_GT(copies.told(), 0);
  });
}

TEST_P(OnAnotherDevice, training_has_the_cpus_losses_and_resumes_bitwise) {
  const TinyRun run(600);
  const auto options_of = [&](const char* name) {
    TrainOptions options = run.options(name);
    options.validation_split_percentage = 20;
    options.eval_steps = 4;
    set(options.engine, GetParam(), run.folder());
    return options;
  };
  const TinyOutcome straight = train_on_ranks(GetParam().ranks, options_of("straight"));
  ASSERT_EQ(straight.losses.size(), 9U);

  TrainOptions on_cpu = options_of("cpu");
  on_cpu.engine.device = at::kCPU;
  on_cpu.engine.attention = AttentionKernel::automatic;
  const TinyOutcome expected = train_on_ranks(GetParam().ranks, on_cpu);
  // Products of fp16 are made in fp32 on the CPU.
  const Precision precision = GetParam().precision;
  const double tolerance = precision == Precision::bf16 ? 2e-2 : precision == Precision::fp16 ? 6e-3 : 1e-4;
  for (const auto& [step, loss] : straight.losses) EXPECT_NEAR(loss / expected.losses.at(step), 1, tolerance);

  TrainOptions stopped = options_of("stopped");
  const TinyOutcome first = train_on_ranks(GetParam().ranks, stopped, /*stop_after=*/5);
  stopped.resume_from_checkpoint = "true";
  const TinyOutcome second = train_on_ranks(GetParam().ranks, stopped);
  auto losses = first.losses;
  losses.insert(second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, straight.losses);
  EXPECT_EQ(testing::tensors_of(second.outcome.checkpoint), testing::tensors_of(straight.outcome.checkpoint));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OnAnotherDevice,
    ::testing::Values(Way{}, Way{.ranks = 2, .ulysses = 2, .precision = Precision::bf16},
                      Way{.ranks = 2, .ulysses = 2, .optimizer_and_activations = Offload::cpu},
                      Way{.ranks = 2,
                          .ulysses = 2,
                          .zero = ZeroStage::parameters,
                          .parameters = Offload::cpu,
                          .optimizer_and_activations = Offload::cpu,
                          .precision = Precision::bf16},
                      Way{.ranks = 2, .zero = ZeroStage::parameters, .parameters = Offload::cpu},
                      Way{.ranks = 4, .ulysses = 2, .ring = 2, .zero = ZeroStage::optimizer},
                      Way{.ranks = 2,
                          .ring = 2,
                          .zero = ZeroStage::parameters,
                          .parameters = Offload::disk,
                          .optimizer_and_activations = Offload::disk,
                          .precision = Precision::fp16}));

// What each has read goes to the device behind the exchange of what they read before.
TEST_F(CommandsOnAnotherDevice, loading_tells_that_it_waits_where_ranks_exchange_what_they_read) {
  const TinyRun run;
  EngineOptions options;
  set(options, {.ranks = 2, .ulysses = 2}, {});
  run_ranks_as_threads(2, [&](World& world) {
    const CopiesSeen copies(world.activity());
    assemble(world, run.model(), options);
    EXPECT_EQ(copies.untold_to_device(), 0);
    EXPECT_EQ(copies.untold_from_device(), 0);
    EXPECT_GT(copies.told(), 0);
  });
}

// Tokens, targets and positions are int64; they go to the device behind the exchanges of the micro-batch before.
TEST_F(CommandsOnAnotherDevice, passes_tell_that_they_wait_for_their_tokens_copies) {
  const TinyRun run;
  EngineOptions options;
  set(options, {.ranks = 2, .ulysses = 2}, {});
  run_ranks_as_threads(2, [&](World& world) {
    const auto engine = assemble(world, run.model(), options);
    StepBatches batches;
    for (const uint64_t seed : {0, 1})
      batches.push_back(testing::slice_of_batch(1, 16, engine->config().vocab_size, seed, 2, world.rank()));
    const CopiesSeen copies(world.activity(), at::kLong);
    engine->train_step(batches, 1e-3);
    engine->evaluate(batches.front());
    EXPECT_EQ(copies.untold_to_device(), 0);
    EXPECT_GT(copies.told(), 0);
  });
}

// Of a step whose loss is not finite every rank looks at whole units.
TEST_F(CommandsOnAnotherDevice, the_look_for_what_is_not_finite_tells_that_it_waits) {
  const TinyRun run;
  EngineOptions options;
  set(options, {.ranks = 2, .ulysses = 2, .zero = ZeroStage::parameters}, {});
  const std::filesystem::path model = run.overflowing_model();
  run_ranks_as_threads(2, [&](World& world) {
    const auto engine = assemble(world, model, options);
    const StepBatches batches{
        testing::slice_of_batch(1, 16, engine->config().vocab_size, 1, 2, world.rank())};
    const CopiesSeen copies(world.activity());
    EXPECT_THROW(engine->train_step(batches, 1e-3), NotFiniteStep);
    EXPECT_EQ(copies.untold_from_device(), 0);
    EXPECT_GT(copies.told(), 0);
  });
}

TEST_F(CommandsOnAnotherDevice, verify_passes_on_hugging_faces_numbers) {
  const std::filesystem::path model = testing::source_folder() / "tests/parity/fixtures/llama";
  for (const int ranks : {1, 3}) {
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions options;
      set(options, {.ranks = ranks, .ulysses = ranks}, {});
      const VerifyResult result =
          verify_reference(world, model, model / "reference.safetensors", options, 1e-4);
      EXPECT_TRUE(result.passed()) << result.table(5);
    });
  }
}

// Not measure_step_rate, whose products fill a GPU for a while.
TEST_F(CommandsOnAnotherDevice, links_and_exchanges_are_measured_where_the_device_is) {
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("link", {{0, 1}});
    EXPECT_FALSE(measure_link(*group, *device_under_test(), 1).timed.empty());

    ExchangeRateOptions exchange;
    exchange.tokens = 64;
    exchange.heads = 4;
    exchange.kv_heads = 2;
    exchange.head_dim = 16;
    exchange.device = *device_under_test();
    exchange.attention = testing::attention_under_test(exchange.device, Precision::fp32);
    exchange.repeats = 1;
    const ExchangeRate rate =
        measure_exchange_rate(world, partition_over(ExchangeMethod::ulysses, 2), exchange);
    EXPECT_GT(rate.most_sent.forward, 0);
  });
}

}  // namespace
}  // namespace trireme::other_device_run_test
