// The gated delta rule in chunks beside its definition: token by token in fp64, gradients by autograd.
#include "trireme/kernels/delta_rule.h"

#include <cmath>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/document_begins.h"

#include "tests/support/relative_error.h"

namespace trireme::delta_rule_test {
namespace {

using testing::relative_error;

struct Case {
  std::vector<int64_t> key_of_value = {0, 0, 1, 1};
  int64_t key_heads = 2;
  std::vector<std::vector<int64_t>> lengths = {};  // of the documents of each sample
  int64_t segment_chunks = 2;
  int64_t key_width = 8;
  int64_t value_width = 6;

  int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t length : lengths.front()) sum += length;
    return sum;
  }
  DeltaRuleSpec spec() const {
    std::vector<Documents> documents;
    for (const std::vector<int64_t>& of_sample : lengths) {
      std::vector<int64_t> borders = {0};
      for (const int64_t length : of_sample) borders.push_back(borders.back() + length);
      documents.emplace_back(borders);
    }
    return {key_of_value, document_begins(documents), segment_chunks};
  }
};

// Decays as models have them: most weak, some strong.
DeltaRuleInputs random_inputs(const Case& c, at::ScalarType dtype = at::kDouble) {
  const auto B = static_cast<int64_t>(c.lengths.size()), S = c.tokens();
  const auto V = static_cast<int64_t>(c.key_of_value.size());
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(dtype); };
  const at::Tensor decay = at::randn({B, S, V}, at::kDouble).mul(2).sub(2).exp().neg();
  return {random({B, S, c.key_heads, c.key_width}), random({B, S, c.key_heads, c.key_width}),
          random({B, S, V, c.value_width}), dtype == at::kDouble ? decay : decay.to(at::kFloat),
          at::rand({B, S, V}, at::kDouble).to(dtype)};
}

// o, dq, dk, dv, ddecay, dbeta
using Results = std::vector<at::Tensor>;
constexpr const char* kNames[] = {"o", "dq", "dk", "dv", "ddecay", "dbeta"};

// One head of one document: q, k [t, Dk], v [t, Dv], decay, beta [t] -> o [t, Dv].
at::Tensor by_definition(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& decay, const at::Tensor& beta) {
  const int64_t width = q.size(1);
  at::Tensor state = at::zeros({width, v.size(1)}, at::kDouble);
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < q.size(0); ++t) {
    const at::Tensor qt = q[t] / (q[t].pow(2).sum() + 1e-6).sqrt() / std::sqrt(static_cast<double>(width));
    const at::Tensor kt = k[t] / (k[t].pow(2).sum() + 1e-6).sqrt();
    state = state * decay[t].exp();
    state = state + at::outer(kt, beta[t] * (v[t] - at::mv(state.t(), kt)));
    outputs.push_back(at::mv(state.t(), qt));
  }
  return at::stack(outputs);
}

Results truth_of(const Case& c, const DeltaRuleInputs& in, const at::Tensor& d_o) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor* x : {&in.q_BSKD, &in.k_BSKD, &in.v_BSVD, &in.decay_BSV, &in.beta_BSV})
    leaves.push_back(x->detach().to(at::kDouble).clone().requires_grad_(true));
  std::vector<at::Tensor> samples;
  for (size_t sample = 0; sample < c.lengths.size(); ++sample) {
    std::vector<at::Tensor> documents;
    int64_t begin = 0;
    for (const int64_t length : c.lengths[sample]) {
      std::vector<at::Tensor> heads;
      for (size_t head = 0; head < c.key_of_value.size(); ++head) {
        const auto part = [&](size_t which, int64_t of_head) {
          return leaves[which][static_cast<int64_t>(sample)].narrow(0, begin, length).select(1, of_head);
        };
        const int64_t key = c.key_of_value[head], value = static_cast<int64_t>(head);
        heads.push_back(
            by_definition(part(0, key), part(1, key), part(2, value), part(3, value), part(4, value)));
      }
      documents.push_back(at::stack(heads, 1));
      begin += length;
    }
    samples.push_back(at::cat(documents));
  }
  const at::Tensor o = at::stack(samples);
  (o * d_o.to(at::kDouble)).sum().backward();
  Results results = {o.detach()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

Results got_of(const Case& c, const DeltaRuleInputs& in, const at::Tensor& d_o) {
  const DeltaRuleSpec spec = c.spec();
  const DeltaRuleOutput output = delta_rule(in, spec, DeltaStates::kept);
  EXPECT_TRUE(at::equal(output.o_BSVD, delta_rule(in, spec, DeltaStates::dropped).o_BSVD));
  const DeltaRuleGradients d = delta_rule_backward(d_o, in, output.states_GBVDD, spec);
  return {output.o_BSVD, d.dq_BSKD, d.dk_BSKD, d.dv_BSVD, d.ddecay_BSV, d.dbeta_BSV};
}

at::Tensor random_d_o(const DeltaRuleInputs& in) {
  return at::randn(in.v_BSVD.sizes(), at::kDouble).to(in.v_BSVD.scalar_type());
}

// Largest difference over the largest entry.
void expect_truth(const Case& c, const DeltaRuleInputs& in, double bound, const std::string& what) {
  const at::Tensor d_o = random_d_o(in);
  const Results got = got_of(c, in, d_o), truth = truth_of(c, in, d_o);
  const std::vector<at::Tensor> inputs = {in.v_BSVD, in.q_BSKD,    in.k_BSKD,
                                          in.v_BSVD, in.decay_BSV, in.beta_BSV};
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), inputs[i].scalar_type()) << kNames[i];
    EXPECT_EQ(got[i].sizes(), inputs[i].sizes()) << kNames[i];
    const double off = (got[i].to(at::kDouble) - truth[i]).abs().max().item<double>();
    EXPECT_LE(off, bound * truth[i].abs().max().item<double>()) << kNames[i] << ", " << what;
  }
}

// 1 to `longest` tokens each, in a random order, `count` of them.
std::vector<int64_t> random_lengths(int64_t count, int64_t longest, int64_t tokens) {
  std::vector<int64_t> lengths;
  int64_t left = tokens;
  while (left > 0 && static_cast<int64_t>(lengths.size()) + 1 < count) {
    lengths.push_back(std::min(left, at::randint(1, longest + 1, {1}).item<int64_t>()));
    left -= lengths.back();
  }
  if (left > 0) lengths.push_back(left);
  return lengths;
}

TEST(DeltaRule, of_every_length_is_its_definition) {
  at::manual_seed(1);
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 200})
    for (const int64_t segment_chunks : {1, 2, 16}) {
      const Case c{.lengths = {{tokens}}, .segment_chunks = segment_chunks};
      expect_truth(c, random_inputs(c), 1e-10, cat(tokens, " tokens, segments of ", segment_chunks));
    }
}

TEST(DeltaRule, value_heads_read_the_key_heads_of_their_map) {
  at::manual_seed(2);
  const std::pair<std::vector<int64_t>, int64_t> maps[] = {
      {{0, 0, 1, 1}, 2}, {{0, 0, 0}, 1}, {{0, 1, 1}, 2}, {{0, 1}, 2}, {{1, 1}, 3}, {{0, 0, 1, 2, 2}, 3}};
  for (const auto& [map, key_heads] : maps) {
    const Case c{
        .key_of_value = map, .key_heads = key_heads, .lengths = {{70, 30}, {1, 99}}, .segment_chunks = 1};
    expect_truth(c, random_inputs(c), 1e-10, cat(map.size(), " value heads of ", key_heads));
  }
}

TEST(DeltaRule, packed_documents_do_not_see_each_other) {
  at::manual_seed(3);
  for (int trial = 0; trial < 6; ++trial) {
    Case c{.key_of_value = {0, 0}, .key_heads = 1, .segment_chunks = 1 + trial % 3};
    const int64_t longest = trial < 2 ? 8 : 130;
    for (int sample = 0; sample < 2; ++sample)
      c.lengths.push_back(random_lengths(1000, longest, 390 + trial));
    expect_truth(c, random_inputs(c), 1e-10, cat("trial ", trial));
  }
}

TEST(DeltaRule, documents_that_end_where_chunks_do) {
  at::manual_seed(4);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{64, 64, 64},
                                              {63, 1, 64, 1, 63},
                                              {65, 63, 64},
                                              {128, 1, 63},
                                              {1, 127, 64},
                                              {191, 1}}) {
    const Case c{.lengths = {lengths}};
    expect_truth(c, random_inputs(c), 1e-10, cat("first of ", lengths[0], ", then ", lengths[1]));
  }
}

// Keys that repeat make the chunk's triangular system as far from the identity as it gets.
TEST(DeltaRule, in_fp32_is_its_definition_to_rounding) {
  at::manual_seed(5);
  const Case c{.lengths = {{150, 90, 60}}, .key_width = 32, .value_width = 16};
  expect_truth(c, random_inputs(c, at::kFloat), 5e-6, "random keys");
  DeltaRuleInputs alike = random_inputs(c, at::kFloat);
  alike.k_BSKD.mul_(0.05).add_(1);
  alike.beta_BSV.fill_(1);
  alike.decay_BSV.mul_(1e-3);
  expect_truth(c, alike, 5e-5, "keys alike");
}

// Where each token forgets nearly all, little is left of a decay's gradient: what a token gives itself has no
// exponent, and must not be added and taken off again.
TEST(DeltaRule, gradients_of_strong_decays_keep_their_digits) {
  at::manual_seed(8);
  const Case c{.lengths = {{150, 50}}, .key_width = 16, .value_width = 8};
  for (const double decay : {-4.0, -8.0, -12.0}) {
    DeltaRuleInputs in = random_inputs(c, at::kFloat);
    in.decay_BSV.mul_(0.1).add_(decay);
    expect_truth(c, in, 1e-5, cat("decays near ", decay));
  }
}

// Beside a decay of e^-50 the sums of a chunk are near -1000, where fp32 knows no differences below 1e-4.
TEST(DeltaRule, weak_decays_beside_strong_ones_keep_their_digits) {
  at::manual_seed(6);
  const Case c{.lengths = {{200}}, .key_width = 16, .value_width = 16};
  DeltaRuleInputs in = random_inputs(c, at::kFloat);
  in.decay_BSV.mul_(0.01).slice(1, 0, std::nullopt, 3).fill_(-50);
  expect_truth(c, in, 5e-6, "every third is strong");
}

TEST(DeltaRule, in_16_bits_rounds_inputs_and_results_alone) {
  at::manual_seed(7);
  const Case c{.lengths = {{150, 90, 60}}, .key_width = 32, .value_width = 16};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    expect_truth(c, random_inputs(c, dtype), dtype == at::kHalf ? 5e-4 : 4e-3, cat(dtype));
}

TEST(DeltaRule, of_the_ends_of_its_ranges_is_finite_and_right) {
  at::manual_seed(8);
  const Case c{.lengths = {{100, 30}}};
  for (const double decay : {0.0, -50.0, -1e4})
    for (const double beta : {0.0, 1.0}) {
      DeltaRuleInputs in = random_inputs(c);
      in.decay_BSV.fill_(decay);
      in.beta_BSV.fill_(beta);
      const at::Tensor d_o = random_d_o(in);
      const Results got = got_of(c, in, d_o), truth = truth_of(c, in, d_o);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LT((got[i] - truth[i]).abs().max().item<double>(), 1e-10)
            << kNames[i] << ", decay " << decay << ", beta " << beta;
      }
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const DeltaRuleInputs narrow{in.q_BSKD.to(dtype), in.k_BSKD.to(dtype), in.v_BSVD.to(dtype),
                                     in.decay_BSV.to(at::kFloat), in.beta_BSV.to(dtype)};
        for (const at::Tensor& x : got_of(c, narrow, d_o.to(dtype)))
          EXPECT_TRUE(x.isfinite().all().item<bool>());
      }
    }
  DeltaRuleInputs zeros = random_inputs(c);
  zeros.q_BSKD.zero_();
  zeros.k_BSKD.zero_();
  expect_truth(c, random_inputs(c), 1e-10, "before");
  for (const at::Tensor& x : got_of(c, zeros, random_d_o(zeros)))
    EXPECT_TRUE(x.isfinite().all().item<bool>());
}

TEST(DeltaRule, of_a_document_has_the_same_bits_whatever_the_others_hold) {
  at::manual_seed(9);
  const Case c{.lengths = {{40, 50, 130, 3, 60}}, .key_width = 32, .value_width = 16};
  const DeltaRuleInputs in = random_inputs(c, at::kFloat);
  const at::Tensor d_o = random_d_o(in);
  const Results before = got_of(c, in, d_o);
  const auto with_new = [&](const at::Tensor& x, int64_t begin, int64_t end) {
    const at::Tensor other = x * 2 - (x.dim() == 3 ? 0 : 1);
    return at::cat({other.narrow(1, 0, begin), x.narrow(1, begin, end - begin), other.slice(1, end)}, 1);
  };
  int64_t begin = 0;
  for (const int64_t length : c.lengths[0]) {
    const int64_t end = begin + length;
    const DeltaRuleInputs other{with_new(in.q_BSKD, begin, end), with_new(in.k_BSKD, begin, end),
                                with_new(in.v_BSVD, begin, end), with_new(in.decay_BSV, begin, end),
                                with_new(in.beta_BSV, begin, end)};
    const Results after = got_of(c, other, with_new(d_o, begin, end));
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i].narrow(1, begin, length), after[i].narrow(1, begin, length)))
          << kNames[i] << " of the document at " << begin;
      EXPECT_FALSE(at::equal(before[i], after[i]));
    }
    begin = end;
  }
}

TEST(DeltaRule, takes_rows_that_lie_apart) {
  at::manual_seed(10);
  const Case c{.lengths = {{100}, {100}}};
  DeltaRuleInputs in = random_inputs(c);
  const int64_t keys = c.key_heads * c.key_width, values = in.v_BSVD.size(2) * c.value_width;
  const at::Tensor row = at::cat({in.q_BSKD.flatten(2), in.k_BSKD.flatten(2), in.v_BSVD.flatten(2)}, -1);
  const at::Tensor d_o = random_d_o(in), apart = d_o.transpose(1, 2).contiguous().transpose(1, 2);
  const Results expected = got_of(c, in, d_o);
  in.q_BSKD = row.narrow(2, 0, keys).unflatten(2, {c.key_heads, c.key_width});
  in.k_BSKD = row.narrow(2, keys, keys).unflatten(2, {c.key_heads, c.key_width});
  in.v_BSVD = row.narrow(2, 2 * keys, values).unflatten(2, {in.v_BSVD.size(2), c.value_width});
  in.decay_BSV = in.decay_BSV.transpose(1, 2).contiguous().transpose(1, 2);
  const Results got = got_of(c, in, apart);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(relative_error(got[i], expected[i]), 1e-14) << kNames[i];
}

TEST(DeltaRule, of_nothing_is_nothing) {
  for (const auto& [batch, tokens, keys, values] :
       {std::tuple{1, 5, 0, 0}, std::tuple{1, 5, 2, 0}, std::tuple{0, 5, 1, 1}, std::tuple{2, 0, 1, 1}}) {
    const DeltaRuleInputs in{at::ones({batch, tokens, keys, 4}), at::ones({batch, tokens, keys, 4}),
                             at::ones({batch, tokens, values, 3}), at::zeros({batch, tokens, values}),
                             at::ones({batch, tokens, values})};
    const DeltaRuleSpec spec{.key_of_value = std::vector<int64_t>(static_cast<size_t>(values), 0)};
    const DeltaRuleOutput output = delta_rule(in, spec, DeltaStates::kept);
    EXPECT_EQ(output.o_BSVD.sizes(), in.v_BSVD.sizes());
    const DeltaRuleGradients d = delta_rule_backward(in.v_BSVD, in, output.states_GBVDD, spec);
    EXPECT_TRUE(at::equal(d.dq_BSKD, at::zeros_like(in.q_BSKD)));
    EXPECT_EQ(d.dv_BSVD.sizes(), in.v_BSVD.sizes());
  }
}

TEST(DeltaRule, refuses_arguments_that_do_not_agree) {
  const Case c{.lengths = {{70}}};
  const DeltaRuleInputs in = random_inputs(c);
  const DeltaRuleSpec spec = c.spec();
  const auto refused = [](const DeltaRuleInputs& inputs, const DeltaRuleSpec& with) {
    EXPECT_THROW(delta_rule(inputs, with, DeltaStates::dropped), InternalError);
  };
  DeltaRuleSpec other = spec;
  other.key_of_value = {0, 0, 1, 2};
  refused(in, other);
  other = spec;
  other.key_of_value.pop_back();
  refused(in, other);
  other = spec;
  other.document_begins_BS = document_begins({Documents::one(69)});
  refused(in, other);
  other = spec;
  other.document_begins_BS = document_begins({Documents::one(70), Documents::one(70)});
  refused(in, other);
  other = spec;
  other.document_begins_BS = spec.document_begins_BS.to(at::kLong);
  refused(in, other);
  other = spec;
  other.segment_chunks = -1;
  refused(in, other);
  DeltaRuleInputs wrong = in;
  wrong.decay_BSV = in.decay_BSV.to(at::kBFloat16);
  refused(wrong, spec);
  wrong = in;
  wrong.k_BSKD = in.k_BSKD.to(at::kFloat);
  refused(wrong, spec);
  wrong = in;
  wrong.beta_BSV = in.beta_BSV.narrow(2, 0, 1);
  refused(wrong, spec);
  const DeltaRuleOutput output = delta_rule(in, spec, DeltaStates::kept);
  EXPECT_THROW(delta_rule_backward(in.v_BSVD.narrow(1, 0, 3), in, output.states_GBVDD, spec), InternalError);
  EXPECT_THROW(delta_rule_backward(in.v_BSVD, in, {}, spec), InternalError);
  EXPECT_THROW(delta_rule_backward(in.v_BSVD, in, output.states_GBVDD.narrow(0, 0, 0), spec), InternalError);
}

}  // namespace
}  // namespace trireme::delta_rule_test
