// The routing of a mixture of experts beside its definition in fp64, and its gradient beside differences.
#include "trireme/kernels/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/kernels/expert_rows.h"

#include "tests/support/relative_error.h"

namespace trireme::expert_routing_test {
namespace {

using testing::relative_error;

constexpr int64_t kTokens = 37, kExperts = 7;

std::vector<RoutingRule> rules() {
  std::vector<RoutingRule> all;
  for (const int64_t per_token : {int64_t{1}, int64_t{3}, kExperts})
    for (const bool sums : {false, true}) all.push_back({per_token, sums});
  return all;
}

// Of one token: its experts by falling probability, and their weights.
std::pair<std::vector<int64_t>, std::vector<double>> by_definition(const double* logits,
                                                                   const RoutingRule& rule) {
  std::vector<double> p(kExperts);
  for (int64_t e = 0; e < kExperts; ++e) p[e] = std::exp(logits[e]);
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  std::vector<int64_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
  order.resize(static_cast<size_t>(rule.experts_per_token));
  double chosen = 0;
  for (const int64_t e : order) chosen += p[e];
  std::vector<double> weights;
  weights.reserve(order.size());
  for (const int64_t e : order) weights.push_back(p[e] / (rule.weights_sum_to_one ? chosen : all));
  return {order, weights};
}

TEST(ExpertRouting, gives_each_token_its_most_probable_experts) {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({kTokens, kExperts}, at::kDouble);
  for (const RoutingRule& rule : rules()) {
    const Routing routing = route(logits, rule), in_fp32 = route(logits.to(at::kFloat), rule);
    EXPECT_TRUE(at::equal(routing.experts_Tk, in_fp32.experts_Tk));
    EXPECT_EQ(in_fp32.weights_Tk.scalar_type(), at::kFloat);
    EXPECT_LT(relative_error(in_fp32.weights_Tk, routing.weights_Tk), 1e-6);
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto [experts, weights] = by_definition(logits[token].const_data_ptr<double>(), rule);
      for (int64_t choice = 0; choice < rule.experts_per_token; ++choice) {
        EXPECT_EQ(routing.experts_Tk[token][choice].item<int64_t>(), experts[choice]);
        EXPECT_NEAR(routing.weights_Tk[token][choice].item<double>(), weights[choice], 1e-12);
      }
    }
  }
}

TEST(ExpertRouting, backward_is_the_slope_of_the_weights) {
  const at::Tensor logits = at::randn({kTokens, kExperts}, at::kDouble);
  constexpr double kStep = 1e-5;
  for (const RoutingRule& rule : rules()) {
    const at::Tensor dweights = at::randn({kTokens, rule.experts_per_token}, at::kDouble);
    const Routing routing = route(logits, rule);
    const at::Tensor got = route_backward(routing.weights_Tk * dweights, routing, logits, rule);
    at::Tensor expected = at::zeros_like(got);
    for (int64_t e = 0; e < kExperts; ++e) {
      at::Tensor step = at::zeros_like(logits);
      step.select(1, e).fill_(kStep);
      const auto weighted = [&](const at::Tensor& there) {
        return (route(there, rule).weights_Tk * dweights).sum(1);
      };
      expected.select(1, e).copy_((weighted(logits + step) - weighted(logits - step)) / (2 * kStep));
    }
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-8)
        << rule.experts_per_token << (rule.weights_sum_to_one ? ", sums to one" : "");
  }
}

// So that neither the size of a tile nor a rank's share changes what a token's experts are.
TEST(ExpertRouting, of_equal_experts_the_first_are_taken_in_every_tile) {
  const at::Tensor logits = at::zeros({kTokens, kExperts}, at::kBFloat16);
  for (const RoutingRule& rule : rules())
    for (const int64_t tokens : {int64_t{1}, int64_t{2}, kTokens}) {
      const Routing routing = route(logits.narrow(0, 0, tokens), rule);
      const at::Tensor first = at::arange(rule.experts_per_token).expand_as(routing.experts_Tk);
      EXPECT_TRUE(at::equal(routing.experts_Tk, first)) << tokens;
    }
}

TEST(ExpertRouting, logits_that_are_no_numbers_give_experts_and_weights_that_are_none) {
  const at::Tensor logits = at::full({3, kExperts}, std::nan(""));
  const Routing routing = route(logits, {2, true});
  EXPECT_TRUE(((routing.experts_Tk >= 0) & (routing.experts_Tk < kExperts)).all().item<bool>());
  EXPECT_TRUE(routing.weights_Tk.isnan().all().item<bool>());
  EXPECT_EQ(rows_by_expert(routing.experts_Tk, kExperts).ends.back(), 6);
}

TEST(ExpertRouting, a_weight_that_underflows_has_no_gradient) {
  const at::Tensor logits = at::tensor({0.0F, -1000.0F, -2000.0F}).view({1, 3});
  for (const bool sums : {false, true}) {
    const RoutingRule rule{2, sums};
    const Routing routing = route(logits, rule);
    ASSERT_EQ(routing.weights_Tk[0][1].item<float>(), 0);
    const at::Tensor got = route_backward(routing.weights_Tk * 3, routing, logits, rule);
    EXPECT_TRUE(at::equal(got, at::zeros({1, 3}))) << got;
  }
}

TEST(ExpertRows, of_one_expert_lie_side_by_side_in_the_order_of_tokens) {
  const at::Tensor experts = at::tensor({4, 1, 0, 4, 1, 0, 4, 0}, at::kLong).view({4, 2});
  const ExpertRows rows = rows_by_expert(experts, 6);
  EXPECT_EQ(rows.ends, (std::vector<int64_t>{3, 5, 5, 5, 8, 8})) << "experts 2, 3 and 5 have none";
  EXPECT_TRUE(at::equal(rows.choice_R, at::tensor({2, 5, 7, 1, 4, 0, 3, 6}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.token_R, at::tensor({1, 2, 3, 0, 2, 0, 1, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.row_Tk, at::tensor({5, 3, 0, 6, 4, 1, 7, 2}, at::kLong).view({4, 2})));
}

TEST(ExpertRows, may_all_be_of_one_expert) {
  const ExpertRows rows = rows_by_expert(at::full({5, 1}, 2, at::kLong), 4);
  EXPECT_EQ(rows.ends, (std::vector<int64_t>{0, 0, 5, 5}));
  EXPECT_TRUE(at::equal(rows.token_R, at::arange(5)));
}

// Token by token and expert by expert, in fp64.
TEST(ExpertRows, products_and_sums_are_those_of_each_token_with_its_experts) {
  constexpr int64_t kWidth = 5, kOut = 3, kPerToken = 2;
  const at::Tensor x = at::randn({kTokens, kWidth}), weights = at::randn({kExperts * kOut, kWidth});
  const at::Tensor dy = at::randn({kTokens, kOut}), choice_weights = at::rand({kTokens, kPerToken});
  const at::Tensor experts = std::get<1>(at::topk(at::randn({kTokens, kExperts - 1}), kPerToken, 1));
  const ExpertRows rows = rows_by_expert(experts, kExperts);
  const at::Tensor w = weights.to(at::kDouble).view({kExperts, kOut, kWidth});
  at::Tensor expected_y = at::zeros({kTokens, kOut}, at::kDouble),
             expected_dx = at::zeros({kTokens, kWidth}, at::kDouble), expected_dw = at::ones_like(w);
  for (int64_t token = 0; token < kTokens; ++token)
    for (int64_t choice = 0; choice < kPerToken; ++choice) {
      const auto e = experts[token][choice].item<int64_t>();
      const double weight = choice_weights[token][choice].item<double>();
      expected_y[token] += weight * w[e].mv(x[token].to(at::kDouble));
      expected_dx[token] += w[e].t().mv(dy[token].to(at::kDouble));
      expected_dw[e] += at::outer(dy[token].to(at::kDouble), x[token].to(at::kDouble));
    }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : 2e-2;
    const at::Tensor x_rows = gather_rows(rows, x.to(dtype)), dy_rows = gather_rows(rows, dy.to(dtype));
    at::Tensor y = at::empty({rows.rows(), kOut}, x_rows.options());
    expert_products_into(rows, y, x_rows, weights.to(dtype));
    EXPECT_LT(relative_error(sum_of_rows(rows, y, choice_weights), expected_y), tolerance);
    at::Tensor dx = at::empty_like(x_rows);
    expert_products_backward_into(rows, dx, dy_rows, weights.to(dtype));
    EXPECT_LT(relative_error(sum_of_rows(rows, dx, {}), expected_dx), tolerance);
    for (const SumState state : {SumState::undefined, SumState::begun}) {
      const at::Tensor dw =
          at::full({kExperts * kOut, kWidth}, state == SumState::begun ? 1.0 : std::nan(""));
      add_expert_gradients(rows, dw, dy_rows, x_rows, state);
      EXPECT_LT(relative_error(dw.view_as(expected_dw), expected_dw - (state == SumState::begun ? 0 : 1)),
                tolerance);
    }
  }
  EXPECT_TRUE(at::equal(gather_choices(rows, choice_weights).view(-1).index_select(0, rows.row_Tk.view(-1)),
                        choice_weights.view(-1)));
}

}  // namespace
}  // namespace trireme::expert_routing_test
