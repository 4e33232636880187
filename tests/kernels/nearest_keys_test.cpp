// Attention cut to the nearest keys is that of a window, over whatever mask there was.
#include "trireme/kernels/nearest_keys.h"

#include <gtest/gtest.h>

#include "tests/kernels/local_case.h"

namespace trireme::nearest_keys_test {
namespace {

TEST(NearestKeys, are_a_window_within_each_document) {
  trireme_test::LocalCase whole{.batch = 2, .tokens = 90, .kv_of_query = {0, 0}, .kv_heads = 1, .width = 16};
  whole.cu_seqlens = {{0, 25, 90}, {0, 90}};
  trireme_test::LocalCase window = whole;
  window.window = 7;
  NearestKeysAttention cut(make_local_attention(AttentionKernel::automatic, at::kCPU, at::kFloat), 7);
  const trireme_test::LocalInputs of_window = trireme_test::draw_inputs(window, at::kFloat, 3);
  trireme_test::LocalInputs inputs = trireme_test::draw_inputs(whole, at::kFloat, 3);
  const auto errors = trireme_test::errors_of(cut, inputs, trireme_test::truth_of(of_window));
  trireme_test::expect_below(errors, 1e-5, 1e-5);
  EXPECT_NE(cut.name().find("nearest 7 keys"), std::string::npos);
  EXPECT_FALSE(cut.by_reference());
  // Another mask at the first one's address is another mask.
  inputs.spec.keys = causal_keys(90, 3);
  inputs.spec.keys = causal_keys(90, 5);
  trireme_test::LocalCase narrow = whole;
  narrow.cu_seqlens = {};
  narrow.window = 5;
  const auto truth = trireme_test::truth_of(trireme_test::draw_inputs(narrow, at::kFloat, 3));
  trireme_test::expect_below(trireme_test::errors_of(cut, inputs, truth), 1e-5, 1e-5);
}

TEST(NearestKeys, are_found_by_the_plain_kernel_where_it_is_given) {
  auto plain = make_local_attention(AttentionKernel::automatic, at::kCPU, at::kDouble);
  EXPECT_TRUE(plain->by_reference());
  EXPECT_TRUE(NearestKeysAttention(std::move(plain), 7).by_reference());
}

}  // namespace
}  // namespace trireme::nearest_keys_test
