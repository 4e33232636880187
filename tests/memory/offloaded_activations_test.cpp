#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/make_activation_store.h"

#include "tests/memory/open_file.h"
#include "tests/support/error_message.h"
#include "tests/support/pinned_ranges.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary_folder.h"

namespace trireme::offloaded_activations_test {
namespace {

using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::open_file_in;
using trireme::testing::pinning_of;
using trireme::testing::SmallFiles;
using trireme::testing::status_of;
using trireme::testing::TemporaryFolder;

constexpr int64_t kLayers = 7;

// Every bit pattern, NaN too.
at::Tensor random_bits(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  return at::randint(256, {bytes}, at::kByte).view(dtype).view(sizes);
}

// What a layer might keep: odd sizes, three dtypes, an empty slot, a view of another's memory.
Saved random_saved(int64_t tokens, int64_t layer) {
  const at::Tensor x = random_bits({tokens, 3 + layer}, at::kBFloat16);
  const at::Tensor packed = random_bits({tokens, 3, 5}, at::kFloat);
  return {x, at::Tensor(), packed.select(1, 0), random_bits({layer + 1}, at::kLong), packed.select(1, 2)};
}

Saved cloned(const Saved& saved) {
  Saved clones;
  for (const at::Tensor& tensor : saved) clones.push_back(tensor.defined() ? tensor.clone() : tensor);
  return clones;
}

void expect_same_bits(const Saved& got, const Saved& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (!got[i].defined()) continue;
    ASSERT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << i;
    ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << i;
    ASSERT_TRUE(at::equal(got[i].contiguous().view(at::kByte), expected[i].contiguous().view(at::kByte)))
        << i;
  }
}

// The forward and backward pass of a step over the store; its layers keep tensors of `tokens` tokens.
void pass(ActivationStore& store, int64_t tokens) {
  std::vector<Saved> expected;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    Saved saved = random_saved(tokens, layer);
    expected.push_back(cloned(saved));
    store.put(layer, std::move(saved));
  }
  for (int64_t layer = kLayers - 1; layer >= 0; --layer)
    expect_same_bits(store.take(layer), expected[static_cast<size_t>(layer)]);
}

std::unique_ptr<SpanStorage> host_spans(std::unique_ptr<SpanStorage> behind = nullptr) {
  const auto pool = std::make_shared<PinnedPool>(pinning_of(std::make_shared<testing::PinnedRanges>()));
  return make_host_spans(kLayers, at::kCPU, pool, make_copy_stream(at::kCPU), std::move(behind));
}

// The three ways out of a device's memory. A CPU stands for the GPU that the last two are for: it
// shows their order of calls, not their streams.
std::vector<std::pair<const char*, std::unique_ptr<SpanStorage>>> storages(SpillFile& file) {
  std::vector<std::pair<const char*, std::unique_ptr<SpanStorage>>> all;
  all.emplace_back("disk", make_disk_spans(kLayers, file));
  all.emplace_back("host", host_spans());
  all.emplace_back("disk behind host", host_spans(make_disk_spans(kLayers, file)));
  return all;
}

TEST(OffloadedActivations, come_back_bitwise_whatever_stays_and_whatever_the_lengths) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  for (const ResidentLayers& layers :
       {ResidentLayers{0, 1, 0}, ResidentLayers{0, 3, 3}, ResidentLayers{1, 1, 1}, ResidentLayers{2, 1, 1},
        ResidentLayers{2, 3, 0}, ResidentLayers{9, 1, 1}})
    for (auto& [name, storage] : storages(file)) {
      SCOPED_TRACE(cat(name, ", ", layers.resident_layers, " resident, ", layers.leaving_layers, " leaving, ",
                       layers.ahead_layers, " ahead"));
      const auto store = make_offloaded_activations(kLayers, std::move(storage), layers);
      for (const int64_t tokens : {33, 33, 1000, 33, 1, 0}) pass(*store, tokens);
    }
  EXPECT_EQ(file.reserved_bytes(), 0) << "destroyed stores give their space back";
}

TEST(OffloadedActivations, may_be_few_or_empty_for_some_layers) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto store = make_offloaded_activations(kLayers, make_disk_spans(kLayers, file), {1, 1, 1});
  const Saved zero = random_saved(100, 0), three = random_saved(100, 3);
  store->put(0, cloned(zero));
  store->put(1, {at::Tensor(), at::Tensor()});
  store->put(3, cloned(three));
  store->put(4, {});
  store->put(6, {at::empty({0, 3})});
  EXPECT_EQ(store->take(6)[0].sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(store->take(4).empty());
  expect_same_bits(store->take(3), three);
  EXPECT_EQ(store->take(1).size(), 2U);
  expect_same_bits(store->take(0), zero);
}

TEST(OffloadedActivations, taking_what_was_not_put_or_putting_twice_is_a_bug) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto store = make_offloaded_activations(2, make_disk_spans(2, file), {0, 1, 0});
  EXPECT_THROW(store->take(0), InternalError);
  store->put(0, {at::ones({1})});
  EXPECT_THROW(store->put(0, {at::ones({1})}), InternalError);
}

TEST(OffloadedActivations, of_all_layers_but_two_go_to_the_disk) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto store = make_activation_store(4, at::kCPU, Offload::disk, &file);
  for (int64_t layer = 0; layer < 4; ++layer) store->put(layer, {at::ones({1000})});
  EXPECT_EQ(file.reserved_bytes(), 8192);
}

TEST(OffloadedActivations, use_the_same_space_in_every_step_and_none_of_an_earlier_length) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto store = make_offloaded_activations(kLayers, make_disk_spans(kLayers, file), {});
  pass(*store, 500);
  const int64_t once = file.reserved_bytes();
  const auto file_bytes = [&] { return status_of(open_file_in(folder.path())).st_size; };
  for (int step = 0; step < 10; ++step) pass(*store, 500);
  EXPECT_EQ(file_bytes(), once) << "the most that it ever took";
  pass(*store, 1500);
  const int64_t longer = file.reserved_bytes();
  EXPECT_GT(longer, 2 * once);
  EXPECT_EQ(file_bytes(), longer) << "laid out without holes";
  pass(*store, 500);
  EXPECT_EQ(file.reserved_bytes(), once);
}

// Lets nothing go before it is asked to: the slowest disk there can be.
class SlowestStorage final : public SpanStorage {
 public:
  void store(int64_t layer, const std::vector<at::Tensor>& spans) override { at(layer) = spans; }
  void stored(int64_t layer) override {
    for (at::Tensor& span : at(layer)) span = span.narrow(0, 0, 1).clone();
  }
  void fetch(int64_t layer) override {
    for (at::Tensor& span : at(layer)) span = at::zeros({kBytes}, at::kByte);
  }
  std::vector<at::Tensor> fetched(int64_t layer) override { return std::exchange(at(layer), {}); }
  static constexpr int64_t kBytes = int64_t{1} << 20;

 private:
  std::vector<at::Tensor>& at(int64_t layer) { return spans_.at(static_cast<size_t>(layer)); }
  std::vector<std::vector<at::Tensor>> spans_ = std::vector<std::vector<at::Tensor>>(kLayers);
};

// Most bytes of activations at once, as the allocator saw them, in a step of layers of kBytes.
int64_t peak_of_a_step(std::unique_ptr<SpanStorage> storage, const ResidentLayers& resident) {
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account, MemoryCategory::activations);
  const auto store = make_offloaded_activations(kLayers, std::move(storage), resident);
  for (int64_t layer = 0; layer < kLayers; ++layer)
    store->put(layer, {at::zeros({SlowestStorage::kBytes}, at::kByte)});
  for (int64_t layer = kLayers - 1; layer >= 0; --layer) store->take(layer);
  return account->state().peak[MemoryCategory::activations];
}

TEST(OffloadedActivations, fall_in_memory_to_those_that_stay_leave_and_come) {
  install_cpu_caching_allocator();
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto small = [](int64_t layers) { return layers * SlowestStorage::kBytes + 1024; };
  for (const int64_t resident : {0, 1, 2})
    for (const int64_t leaving : {1, 2})
      for (const int64_t ahead : {0, 1, 2}) {
        SCOPED_TRACE(cat(resident, " resident, ", leaving, " leaving, ", ahead, " ahead"));
        // Beside them, the one that is being put or was taken.
        const int64_t most = 1 + std::max(resident + leaving, ahead);
        EXPECT_LE(peak_of_a_step(std::make_unique<SlowestStorage>(), {resident, leaving, ahead}),
                  small(most));
        EXPECT_LE(peak_of_a_step(make_disk_spans(kLayers, file), {resident, leaving, ahead}), small(most));
      }
  EXPECT_GE(peak_of_a_step(std::make_unique<SlowestStorage>(), {2, 1, 1}), 3 * SlowestStorage::kBytes);
}

TEST(OffloadedActivations, beyond_the_limit_are_refused_and_what_was_put_can_be_taken) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 8192);
  const auto store = make_activation_store(kLayers, at::kCPU, Offload::disk, &file);
  std::vector<Saved> expected;
  for (int64_t layer = 0; layer < 4; ++layer) {
    expected.push_back({at::randn({1000})});
    store->put(layer, cloned(expected.back()));
  }
  expected.push_back({at::randn({1000})});
  EXPECT_THAT(message_of<ConfigError>([&] { store->put(4, cloned(expected[4])); }),
              HasSubstr("beyond the limit of 8.0 KiB"));
  for (int64_t layer = 4; layer >= 0; --layer)
    expect_same_bits(store->take(layer), expected[static_cast<size_t>(layer)]);
  for (int64_t layer = 0; layer < 4; ++layer) store->put(layer, cloned(expected[static_cast<size_t>(layer)]));
  for (int64_t layer = 3; layer >= 0; --layer)
    expect_same_bits(store->take(layer), expected[static_cast<size_t>(layer)]);
}

TEST(OffloadedActivations, on_a_disk_that_refuses_are_a_data_error_and_the_store_goes_in_peace) {
  const TemporaryFolder folder;
  for (auto make :
       {+[](SpillFile& file) -> std::unique_ptr<SpanStorage> { return make_disk_spans(kLayers, file); },
        +[](SpillFile& file) -> std::unique_ptr<SpanStorage> {
          return host_spans(make_disk_spans(kLayers, file));
        }}) {
    SpillFile file(folder.path(), 0);
    const auto store = make_offloaded_activations(kLayers, make(file), {1, 1, 1});
    pass(*store, 2000);  // has its space from here on
    const SmallFiles small(4096);
    EXPECT_THAT(message_of<DataError>([&] { pass(*store, 2000); }), HasSubstr("writing"));
  }
}

TEST(OffloadedActivations, on_a_disk_without_room_are_a_data_error_before_any_write) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto store = make_activation_store(kLayers, at::kCPU, Offload::disk, &file);
  const SmallFiles small(16 << 10);
  const Saved saved = random_saved(2000, 0);
  store->put(0, cloned(saved));
  store->put(1, cloned(saved));
  EXPECT_THAT(message_of<DataError>([&] { store->put(2, cloned(saved)); }), HasSubstr("cannot take"));
  EXPECT_EQ(file.reserved_bytes(), 0);
  for (int64_t layer = 2; layer >= 0; --layer) expect_same_bits(store->take(layer), saved);
}

TEST(OffloadedActivations, to_the_host_of_a_cpu_stay_the_very_tensors_they_were) {
  for (const Offload offload : {Offload::none, Offload::cpu}) {
    const auto store = make_activation_store(1, at::kCPU, offload, nullptr);
    const at::Tensor x = at::ones({3});
    store->put(0, {x});
    EXPECT_TRUE(store->take(0)[0].is_same(x));
  }
  EXPECT_THROW(make_activation_store(1, at::kCPU, Offload::disk, nullptr), InternalError);
}

}  // namespace
}  // namespace trireme::offloaded_activations_test
