// Laws of both parameter stores (replicated_parameters.cpp, sharded_parameters.cpp).
#include "trireme/shard/parameter_store.h"

#include <optional>

#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/shard/unit_shares.h"

namespace trireme::parameter_store_test {
namespace {

constexpr int64_t kElements = 80;  // of 2 ranks 48 and 32

std::unique_ptr<ParameterStore> make_store(bool sharded, Group& group, at::ScalarType dtype) {
  const std::vector<FlatUnit> units{{"unit", kElements, {}}};
  const ParameterSettings settings{.compute_dtype = dtype};
  return sharded ? make_sharded_parameters(units, group, settings)
                 : make_replicated_parameters(units, group, /*shard_masters=*/true, settings);
}

// An optimizer that writes values beside the masters: what it wrote is what compute reads.
TEST(ParameterStore, copies_masters_to_values_unless_the_caller_takes_these_to_write) {
  for (const bool sharded : {false, true})
    for (const int ranks : {1, 2})
      run_ranks_as_threads(ranks, [&](World& world) {
        SCOPED_TRACE(::testing::Message() << "sharded " << sharded << ", ranks " << ranks);
        const at::NoGradGuard no_autograd;
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        const auto store = make_store(sharded, *mesh.all, at::kBFloat16);
        const auto step = [&](double master, std::optional<double> value) {
          store->open_master(0).fill_(master);
          if (value) store->values_to_write(0).fill_(*value);
          store->close_master(0);
          at::Tensor values = store->gather(0).clone();
          store->release(0);
          return values;
        };
        const auto all = [](double value) { return at::full({kElements}, value, at::kBFloat16); };
        EXPECT_TRUE(at::equal(step(1, {}), all(1)));
        EXPECT_TRUE(at::equal(step(2, 20), all(20)));
        EXPECT_TRUE(at::equal(store->whole_master(0), at::full({kElements}, 2.0F)));
        EXPECT_TRUE(at::equal(step(3, {}), all(3)));
        store->open_master(0);
        store->values_to_write(0);  // by a step that failed
        EXPECT_TRUE(at::equal(step(4, {}), all(4)));
      });
}

TEST(ParameterStore, has_no_values_to_write_where_they_are_the_masters) {
  for (const bool sharded : {false, true})
    run_ranks_as_threads(1, [&](World& world) {
      const Mesh mesh = make_mesh(world, {});
      const auto store = make_store(sharded, *mesh.all, at::kFloat);
      store->open_master(0);
      EXPECT_FALSE(store->values_to_write(0).defined());
      store->close_master(0);
    });
}

}  // namespace
}  // namespace trireme::parameter_store_test
