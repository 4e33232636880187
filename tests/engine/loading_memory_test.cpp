// What loading takes of memory beside the store. In the binary that makes the counting allocator libtorch's.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/engine/load_weights.h"
#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_shares.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

// Four buffers of a piece, and with whole masters the pieces of all ranks once: of a model of any size.
TEST(LoadingMemory, is_that_of_a_few_pieces_whatever_the_models_size) {
  install_cpu_caching_allocator();
  constexpr int64_t kPiece_bytes = 4096, kCrumbs_bytes = 4096;
  testing::TemporaryFolder folder;
  Json config = testing::tiny_llama_config();
  config["vocab_size"] = 5000;  // 640 KB in one parameter
  testing::write_tiny_model(folder.path(), config);
  const ModelLayout layout = make_model_layout(parse_model_config(config, "test"));
  for (const int ranks : {1, 2, 4}) {
    std::vector<FlatUnit> units;
    for (const UnitSpec& unit : layout.units)
      units.push_back({unit.name, padded_elements(unit.elements, ranks), {}});
    for (const bool whole : {true, false})
      run_ranks_as_threads(ranks, [&](World& world) {
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        const auto account = std::make_shared<MemoryAccount>();
        const MemoryScope counted(account, MemoryCategory::other);
        const auto store = make_replicated_parameters(units, *mesh.all, !whole, {});
        const int64_t before = account->state().peak_total_bytes;
        load_weights(CheckpointReader(folder.path()), layout, *store,
                     {*mesh.all, at::kCPU, nullptr, kPiece_bytes});
        const int64_t gathered = whole && ranks > 1 ? ranks * kPiece_bytes : 0;
        EXPECT_LE(account->state().peak_total_bytes - before, 4 * kPiece_bytes + gathered + kCrumbs_bytes)
            << ranks << (whole ? " ranks, whole masters" : " ranks, shares");
        EXPECT_GE(account->state().peak_total_bytes - before, 4 * kPiece_bytes)
            << "what is read ahead is counted";
      });
  }
}

}  // namespace
}  // namespace trireme
