// Updates on a thread of their own: their order, who waits for which, what becomes of errors; and a real
// model's forward that goes on while later units are still being updated, and never sees old values.
#include "trireme/engine/deferred_updates.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/model_executor.h"
#include "trireme/engine/parameters_in_update.h"
#include "trireme/model/checkpoint_files.h"

#include "tests/engine/gate.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/change_master.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using testing::Gate;
using testing::message_of;
using testing::TemporaryFolder;

constexpr size_t kUnits = 4;

TEST(DeferredUpdates, run_in_the_order_in_which_they_came_on_one_other_thread) {
  std::vector<int> order;
  std::set<std::thread::id> threads;
  DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, kUnits);
  for (const int unit : {2, 0, 3, 1, 0, 2})
    updates.submit(unit, [&, unit] {
      order.push_back(unit);
      threads.insert(std::this_thread::get_id());
    });
  updates.wait_all();
  EXPECT_EQ(order, (std::vector<int>{2, 0, 3, 1, 0, 2}));
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(DeferredUpdates, a_unit_waits_for_its_own_and_for_no_other) {
  Gate gate;
  bool held_done = false, last_done = false;
  DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, kUnits);
  updates.submit(0, [] {});
  updates.submit(1, [&] { held_done = gate.wait(); });
  updates.submit(2, [&] { last_done = true; });
  updates.wait(0);
  updates.wait(3);
  EXPECT_FALSE(updates.pending(0));
  EXPECT_TRUE(updates.pending(1));
  EXPECT_TRUE(updates.pending(2));
  gate.open();
  updates.wait(1);
  EXPECT_TRUE(held_done);
  updates.wait_all();
  EXPECT_TRUE(last_done);
  EXPECT_FALSE(updates.pending(2));
}

TEST(DeferredUpdates, what_a_job_held_is_free_when_it_is_done) {
  DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, kUnits);
  auto gradient = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = gradient;
  updates.submit(0, [gradient = std::move(gradient)] {});
  updates.wait(0);
  EXPECT_TRUE(watched.expired());
}

TEST(DeferredUpdates, an_error_keeps_its_type_ends_what_was_to_come_and_is_never_forgotten) {
  Gate gate;
  std::atomic<bool> later_ran = false;
  {
    DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, kUnits);
    updates.submit(0, [] {});
    updates.submit(1, [&] {
      EXPECT_TRUE(gate.wait());
      throw DataError("the disk of unit 1");
    });
    updates.submit(2, [&] { later_ran = true; });
    updates.wait(0);
    gate.open();
    EXPECT_EQ(message_of<DataError>([&] { updates.wait(2); }), "the disk of unit 1");
    EXPECT_EQ(message_of<DataError>([&] { updates.wait(0); }), "the disk of unit 1");
    EXPECT_EQ(message_of<DataError>([&] { updates.wait_all(); }), "the disk of unit 1");
    EXPECT_EQ(message_of<DataError>([&] { updates.submit(3, [&] { later_ran = true; }); }),
              "the disk of unit 1");
    EXPECT_FALSE(updates.pending(3));
  }
  EXPECT_FALSE(later_ran);
}

TEST(DeferredUpdates, may_be_left_without_a_wait) {
  Gate begun, gate;
  std::atomic<bool> done = false;
  std::thread opener;
  {
    DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, kUnits);
    updates.submit(0, [&] {
      begun.open();
      done = gate.wait();
      throw DataError("that nobody waits for");
    });
    updates.submit(1, [] {});
    ASSERT_TRUE(begun.wait());
    opener = std::thread([&] { gate.open(); });
  }
  EXPECT_TRUE(done) << "what a job works on lives until it is done";
  opener.join();
}

TEST(DeferredUpdates, work_as_their_submitter_does) {
  const int threads_before = at::get_num_threads();
  const RankMemory memory = make_rank_memory(at::kCPU);
  DeferredUpdates updates(memory, at::kCPU, kUnits);
  for (const int threads : {3, 1}) {
    at::set_num_threads(threads);
    updates.submit(0, [&, threads] {
      EXPECT_EQ(at::get_num_threads(), threads);
      EXPECT_FALSE(at::GradMode::is_enabled());
      EXPECT_EQ(MemoryScope::current().account, memory.account);
    });
    updates.wait_all();
  }
  at::set_num_threads(threads_before);
}

// Tells what the executor asks for.
class Watched final : public ParameterStore {
 public:
  Watched(ParameterStore& store, std::function<void(int)> on_gather, std::function<void(int)> on_release)
      : store_(store), on_gather_(std::move(on_gather)), on_release_(std::move(on_release)) {}
  at::Tensor gather(int unit) override {
    on_gather_(unit);
    return store_.gather(unit);
  }
  void release(int unit) override {
    store_.release(unit);
    on_release_(unit);
  }
  void prefetch(int unit) override { store_.prefetch(unit); }
  const std::vector<UnitShare>& shares() const override { return store_.shares(); }
  MasterShare open_master(int unit) override { return store_.open_master(unit); }
  void close_master(int unit) override { store_.close_master(unit); }
  at::Tensor whole_master(int unit) override { return store_.whole_master(unit); }

 private:
  ParameterStore& store_;
  std::function<void(int)> on_gather_, on_release_;
};

TEST(DeferredUpdates, a_forward_goes_on_while_later_units_are_held_back_and_sees_new_values_alone) {
  const TemporaryFolder folder;
  Json json = testing::tiny_llama_config();
  json["num_hidden_layers"] = 3;
  testing::write_tiny_model(folder.path(), json);
  run_ranks_as_threads(1, [&](World& world) {
    const at::NoGradGuard no_autograd;
    const ModelConfig config = read_model_config(folder.path());
    const ModelLayout layout = make_model_layout(config);
    const Mesh mesh = make_mesh(world, {});
    std::vector<FlatUnit> units;
    units.reserve(layout.units.size());
    for (const UnitSpec& unit : layout.units) units.push_back({unit.name, unit.elements, {}});
    const auto store = make_replicated_parameters(units, *mesh.all, false, {});
    const CheckpointReader reader(folder.path());
    const auto set_all = [&](double factor) {
      for (size_t unit = 0; unit < units.size(); ++unit) {
        at::Tensor flat = at::zeros({units[unit].elements}, at::kFloat);
        reader.read_unit(layout.units[unit], flat);
        testing::change_master(*store, static_cast<int>(unit),
                               [&](const at::Tensor& master) { master.copy_(flat.mul_(factor)); });
      }
    };
    const auto attention = make_local_attention(AttentionKernel::automatic, at::kCPU, at::kFloat);
    const auto sharded = make_sharded_attention(
        *mesh.ulysses, make_sequence_attention(RingMethod::ring, *mesh.ring, *attention),
        share_heads(config.num_attention_heads, config.num_key_value_heads, 1), {.scale = 0.25}, 1);
    const RecomputePlan plan{Recompute::full, 1, 1, config.num_hidden_layers};
    LayerRunner layers(config, {*sharded}, plan, 100);
    const TokenBatch batch = testing::slice_of_batch(1, 30, 70, 1, 1, 0);
    const auto loss_through = [&](ParameterStore& parameters) {
      return ModelExecutor(config, layout, mesh, layers, parameters, {}).forward(batch, nullptr);
    };
    constexpr double kFactor = 1.25;  // exact in fp32
    set_all(kFactor);
    const at::Tensor expected = loss_through(*store);
    set_all(1);
    ASSERT_FALSE(at::equal(loss_through(*store), expected));

    Gate first_forward, third_asked;
    DeferredUpdates updates(make_rank_memory(at::kCPU), at::kCPU, units.size());
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit)
      updates.submit(unit, [&, unit] {
        // Its update waits for another unit's forward, which must not wait for it.
        if (unit == 2) {
          EXPECT_TRUE(first_forward.wait()) << "forward waits for more than its own unit";
        }
        // The executor is at the unit already: it must not compute with what it finds there.
        if (unit == 3) {
          EXPECT_TRUE(third_asked.wait());
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        testing::change_master(*store, unit, [&](const at::Tensor& master) { master.mul_(kFactor); });
      });
    ParametersInUpdate parameters(*store, updates);
    Watched watched(
        parameters,
        [&](int unit) {
          if (unit == 3) third_asked.open();
        },
        [&](int unit) {
          if (unit == 0) first_forward.open();
        });
    EXPECT_TRUE(at::equal(loss_through(watched), expected));
    updates.wait_all();
  });
}

}  // namespace
}  // namespace trireme
