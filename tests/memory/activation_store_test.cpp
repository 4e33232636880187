#include "trireme/memory/activation_store.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(ActivationStore, hands_over_what_was_put_and_forgets_it) {
  DeviceActivationStore store(2);
  const at::Tensor x = at::ones({4}), y = at::zeros({8});
  store.put(0, {x, at::Tensor(), y});
  EXPECT_EQ(store.held_bytes(), 48);
  const Saved saved = store.take(0);
  EXPECT_TRUE(saved[0].is_same(x));
  EXPECT_FALSE(saved[1].defined());
  EXPECT_TRUE(saved[2].is_same(y));
  EXPECT_EQ(store.held_bytes(), 0);
}

TEST(ActivationStore, taking_what_was_not_put_or_putting_twice_is_a_bug) {
  DeviceActivationStore store(1);
  EXPECT_THROW(store.take(0), InternalError);
  store.put(0, {at::ones({1})});
  EXPECT_THROW(store.put(0, {at::ones({1})}), InternalError);
}

}  // namespace
}  // namespace trireme
