#include "trireme/memory/saved_spans.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// The spans at another address, as after a way through a file.
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& spans) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& span : spans) result.push_back(span.clone());
  return result;
}

void expect_same(const Saved& got, const Saved& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << i;
    EXPECT_EQ(got[i].sizes(), expected[i].sizes()) << i;
    EXPECT_EQ(got[i].strides(), expected[i].strides()) << i;
    EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  }
}

TEST(SavedSpans, make_the_same_tensors_at_another_place) {
  const Saved saved = {at::randn({7, 5}),
                       at::Tensor(),
                       at::randn({3, 1, 2}).to(at::kBFloat16),
                       at::randint(100, {11}, at::kLong),
                       at::empty({0, 4}),
                       at::randn({4, 6}).t(),
                       at::randn({9}, at::kDouble).narrow(0, 3, 4),
                       at::scalar_tensor(3.5)};
  const SavedSpans split = split_saved(saved);
  EXPECT_EQ(split.spans.size(), 7U);
  expect_same(split.layout.tensors(split.spans), saved);
  expect_same(split.layout.tensors(copies(split.spans)), saved);
}

TEST(SavedSpans, are_the_tensors_own_memory) {
  const at::Tensor x = at::zeros({10});
  const SavedSpans split = split_saved({x});
  EXPECT_EQ(split.spans.at(0).const_data_ptr(), x.const_data_ptr());
  EXPECT_EQ(split.spans.at(0).numel(), 40);
  EXPECT_EQ(split.layout.bytes(), 40);
}

TEST(SavedSpans, tensors_over_one_memory_travel_once_and_share_it_again) {
  const at::Tensor qkv = at::randn({10, 3, 8});
  const at::Tensor o = at::randn({10, 8});
  const Saved saved = {qkv.select(1, 1), o, qkv.select(1, 2), o.view({10, 2, 4})};
  const SavedSpans split = split_saved(saved);
  ASSERT_EQ(split.spans.size(), 2U);
  EXPECT_LE(split.spans[0].numel(), 10 * 3 * 8 * 4);
  const Saved made = split.layout.tensors(copies(split.spans));
  expect_same(made, saved);
  EXPECT_TRUE(made[0].is_alias_of(made[2]));
  EXPECT_TRUE(made[1].is_alias_of(made[3]));
  EXPECT_FALSE(made[0].is_alias_of(made[1]));
}

TEST(SavedSpans, of_a_few_rows_of_a_large_tensor_are_those_rows) {
  const at::Tensor rows = at::randn({1000, 16}).narrow(0, 500, 10);
  const SavedSpans split = split_saved({rows});
  EXPECT_EQ(split.spans.at(0).numel(), 10 * 16 * 4);
  expect_same(split.layout.tensors(copies(split.spans)), {rows});
}

TEST(SavedSpans, refuse_what_has_no_plain_memory) {
  EXPECT_THROW(split_saved({at::ones({3}).to_sparse()}), InternalError);
}

}  // namespace
}  // namespace trireme
