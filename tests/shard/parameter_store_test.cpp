// Laws of both parameter stores (replicated_parameters.cpp, sharded_parameters.cpp).
#include "trireme/shard/parameter_store.h"

#include <functional>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/kernels/split_master.h"
#include "trireme/shard/unit_shares.h"

namespace trireme::parameter_store_test {
namespace {

constexpr int64_t kElements = 96;

struct Layout {
  const char* name;
  bool sharded;
  Offload optimizer;
  bool split;
};
constexpr Layout kLayouts[] = {{"replicated", false, Offload::none, true},
                               {"replicated, optimizer offloaded", false, Offload::cpu, false},
                               {"sharded", true, Offload::none, true},
                               {"sharded, optimizer offloaded", true, Offload::cpu, false}};

std::unique_ptr<ParameterStore> make_store(const Layout& layout, Group& group, at::ScalarType dtype) {
  const std::vector<FlatUnit> units{{"unit", kElements, {}}};
  const ParameterSettings settings{.compute_dtype = dtype, .optimizer = layout.optimizer};
  return layout.sharded ? make_sharded_parameters(units, group, settings)
                        : make_replicated_parameters(units, group, /*shard_masters=*/true, settings);
}

void for_layouts(at::ScalarType dtype,
                 const std::function<void(const Layout&, Group&, ParameterStore&)>& law) {
  for (const Layout& layout : kLayouts)
    for (const int ranks : {1, 2})
      run_ranks_as_threads(ranks, [&](World& world) {
        SCOPED_TRACE(::testing::Message() << layout.name << ", ranks " << ranks);
        const at::NoGradGuard no_autograd;
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        law(layout, *mesh.all, *make_store(layout, *mesh.all, dtype));
      });
}

at::Tensor gathered(ParameterStore& store) {
  at::Tensor values = store.gather(0).clone();
  store.release(0);
  return values;
}

// Of all ranks, whose shares each sets.
at::Tensor set_masters(ParameterStore& store, const Group& group) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  at::Tensor masters = at::randn({kElements}, generator);
  const UnitShare share = share_of(kElements, group.size(), group.rank());
  store.open_master(0).set(masters.narrow(0, share.begin, share.elements));
  store.close_master(0);
  return masters;
}

TEST(ParameterStore, keeps_masters_exactly_and_gives_compute_their_nearest_values) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for_layouts(dtype, [&](const Layout&, Group& group, ParameterStore& store) {
      const at::Tensor masters = set_masters(store, group);
      at::Tensor values = at::empty({kElements}, dtype);
      round_masters(masters, values);
      for (int use = 0; use < 2; ++use) {
        EXPECT_TRUE(at::equal(gathered(store), values));
        EXPECT_TRUE(at::equal(store.whole_master(0), masters));
      }
    });
}

TEST(ParameterStore, takes_masters_of_any_dtype_in_place_of_those_before) {
  for (const at::ScalarType of : {at::kBFloat16, at::kHalf, at::kDouble})
    for_layouts(at::kBFloat16, [&](const Layout&, Group& group, ParameterStore& store) {
      const at::Tensor masters = set_masters(store, group).mul(3).to(of);
      const UnitShare share = share_of(kElements, group.size(), group.rank());
      store.open_master(0).set(masters.narrow(0, share.begin, share.elements));
      store.close_master(0);
      EXPECT_TRUE(at::equal(store.whole_master(0), masters.to(at::kFloat)));
    });
}

// 4 bytes an element of masters and values together, where separate ones take 6.
TEST(ParameterStore, keeps_of_masters_only_the_bits_that_bf16_values_beside_them_lack) {
  for_layouts(at::kBFloat16, [](const Layout& layout, Group&, ParameterStore& store) {
    const MasterShare master = store.open_master(0);
    EXPECT_EQ(master.split(), layout.split);
    EXPECT_EQ(master.whole.defined(), !layout.split);
    EXPECT_TRUE(master.values.defined());
    store.close_master(0);
  });
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf})
    for_layouts(dtype, [dtype](const Layout&, Group&, ParameterStore& store) {
      const MasterShare master = store.open_master(0);
      EXPECT_FALSE(master.split());
      EXPECT_EQ(master.values.defined(), dtype == at::kHalf);
      store.close_master(0);
    });
}

TEST(ParameterStore, opens_again_what_a_step_that_failed_left_open) {
  for_layouts(at::kBFloat16, [](const Layout&, Group& group, ParameterStore& store) {
    store.open_master(0);
    const at::Tensor masters = set_masters(store, group);
    EXPECT_TRUE(at::equal(store.whole_master(0), masters));
  });
}

}  // namespace
}  // namespace trireme::parameter_store_test
