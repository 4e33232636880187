// The bytes of the gated delta rule's formulas beside those that libtorch is asked for.
#include "trireme/kernels/delta_rule_bytes.h"

#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/kernels/delta_rule.h"

namespace trireme::delta_rule_test {
namespace {

class DeltaRuleBytes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

template <typename Body>
int64_t peak_bytes(const Body& body) {
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account, MemoryCategory::other);
  body();
  return account->state().peak_total_bytes;
}

struct BytesCase {
  const char* name;
  DeltaRuleSizes sizes;
  std::vector<int64_t> key_of_value;
  at::ScalarType dtype = at::kFloat;
};

std::vector<BytesCase> bytes_cases() {
  const DeltaRuleSizes usual{
      .batch = 1, .tokens = 2048, .key_heads = 4, .value_heads = 8, .key_width = 128, .value_width = 128};
  const auto with = [&](const auto& change) {
    DeltaRuleSizes sizes = usual;
    change(sizes);
    return sizes;
  };
  const std::vector<int64_t> pairs = {0, 0, 1, 1, 2, 2, 3, 3};
  return {{"fp32", usual, pairs},
          {"bf16", usual, pairs, at::kBFloat16},
          {"fp64", with([](auto& z) { z.value_bytes = 8; }), pairs, at::kDouble},
          {"two samples", with([](auto& z) { z.batch = 2; }), pairs},
          {"large segments", with([](auto& z) { z.segment_chunks = 32; }), pairs},
          {"ragged", with([](auto& z) { z.tokens = 500; }), pairs},
          {"spread", with([](auto& z) { z.spread = true, z.value_heads = 7; }), {0, 1, 1, 2, 2, 3, 3}},
          {"narrow", with([](auto& z) { z.key_width = z.value_width = 32; }), pairs},
          {"wide values", with([](auto& z) { z.value_width = 256; }), pairs},
          {"a head", with([](auto& z) { z.key_heads = z.value_heads = 1; }), {0}}};
}

TEST_F(DeltaRuleBytes, are_what_the_formulas_say_at_most_and_nearly) {
  for (const BytesCase& c : bytes_cases()) {
    const DeltaRuleSizes& z = c.sizes;
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(c.dtype); };
    const at::ScalarType decay_dtype = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
    const DeltaRuleInputs in{random({z.batch, z.tokens, z.key_heads, z.key_width}),
                             random({z.batch, z.tokens, z.key_heads, z.key_width}),
                             random({z.batch, z.tokens, z.value_heads, z.value_width}),
                             at::rand({z.batch, z.tokens, z.value_heads}).neg().to(decay_dtype),
                             at::rand({z.batch, z.tokens, z.value_heads}).to(c.dtype)};
    const at::Tensor begins = at::zeros({z.batch, z.tokens}, at::kInt);
    const DeltaRuleSpec spec{
        .key_of_value = c.key_of_value, .document_begins_BS = begins, .segment_chunks = z.segment_chunks};
    DeltaRuleOutput output;
    const int64_t forward = peak_bytes([&] { output = delta_rule(in, spec, DeltaStates::kept); });
    EXPECT_EQ(static_cast<int64_t>(output.states_GBVDD.nbytes()), delta_rule_states_bytes(z)) << c.name;
    const auto beside = static_cast<int64_t>(output.o_BSVD.nbytes() + output.states_GBVDD.nbytes());
    EXPECT_LE(forward - beside, delta_rule_forward_bytes(z)) << c.name;
    EXPECT_GE(1.25 * static_cast<double>(forward - beside), delta_rule_forward_bytes(z)) << c.name;

    const int64_t backward =
        peak_bytes([&] { delta_rule_backward(in.v_BSVD, in, output.states_GBVDD, spec); });
    int64_t gradients = 0;
    for (const at::Tensor* x : {&in.q_BSKD, &in.k_BSKD, &in.v_BSVD, &in.decay_BSV, &in.beta_BSV})
      gradients += static_cast<int64_t>(x->nbytes());
    EXPECT_LE(backward - gradients, delta_rule_backward_bytes(z)) << c.name;
    EXPECT_GE(1.25 * static_cast<double>(backward - gradients), delta_rule_backward_bytes(z)) << c.name;
  }
}

TEST(DeltaRuleFormulas, do_not_grow_with_the_sequence) {
  DeltaRuleSizes z{
      .batch = 2, .tokens = 4096, .key_heads = 4, .value_heads = 8, .key_width = 128, .value_width = 128};
  DeltaRuleSizes longer = z;
  longer.tokens = 1 << 20;
  EXPECT_EQ(delta_rule_forward_bytes(longer), delta_rule_forward_bytes(z));
  EXPECT_EQ(delta_rule_backward_bytes(longer), delta_rule_backward_bytes(z));
}

TEST(DeltaRuleFormulas, a_gpu_takes_more_chunks_at_once_of_fewer_heads) {
  EXPECT_EQ(delta_segment_of_gpu_chunks(64), 32);
  EXPECT_EQ(delta_segment_of_gpu_chunks(32), 32);
  EXPECT_EQ(delta_segment_of_gpu_chunks(8), 128);
  EXPECT_EQ(delta_segment_of_gpu_chunks(1), 256);
  EXPECT_EQ(delta_segment_of_gpu_chunks(0), 256);
}

}  // namespace
}  // namespace trireme::delta_rule_test
