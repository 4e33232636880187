#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/memory/make_activation_store.h"

namespace trireme {
namespace {

TEST(ActivationStore, hands_over_what_was_put_and_forgets_it) {
  const auto store = make_activation_store(2, at::kCPU, Offload::none, nullptr);
  const at::Tensor x = at::ones({4}), y = at::zeros({8});
  store->put(0, {x, at::Tensor(), y});
  const Saved saved = store->take(0);
  EXPECT_TRUE(saved[0].is_same(x));
  EXPECT_FALSE(saved[1].defined());
  EXPECT_TRUE(saved[2].is_same(y));
  EXPECT_THROW(store->take(0), InternalError);
}

TEST(ActivationStore, taking_what_was_not_put_or_putting_twice_is_a_bug) {
  const auto store = make_activation_store(1, at::kCPU, Offload::none, nullptr);
  EXPECT_THROW(store->take(0), InternalError);
  store->put(0, {at::ones({1})});
  EXPECT_THROW(store->put(0, {at::ones({1})}), InternalError);
}

}  // namespace
}  // namespace trireme
