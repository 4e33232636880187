#include "trireme/eval/loss_by_position.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/token_positions.h"

namespace trireme {

int64_t PositionLoss::target_tokens() const {
  int64_t all = 0;
  for (const PositionBucket& bucket : buckets) all += bucket.target_tokens;
  return all;
}

double PositionLoss::loss() const {
  double sum = 0;
  for (const PositionBucket& bucket : buckets) sum += bucket.loss_sum;
  return target_tokens() > 0 ? sum / static_cast<double>(target_tokens()) : 0;
}

Json PositionLoss::to_json() const {
  Json rows = Json::array();
  for (const PositionBucket& bucket : buckets)
    rows.push_back({{"begin", bucket.begin},
                    {"end", bucket.end},
                    {"target_tokens", bucket.target_tokens},
                    {"loss", bucket.target_tokens > 0 ? Json(bucket.mean()) : Json()}});
  return {{"sequence_tokens", sequence_tokens}, {"samples", samples},
          {"target_tokens", target_tokens()},   {"loss", loss()},
          {"perplexity", std::exp(loss())},     {"by_position", rows}};
}

std::string PositionLoss::table() const {
  std::string text = "           positions        targets      loss  perplexity\n";
  const auto row = [&](const std::string& label, int64_t tokens, double loss) {
    char line[128];
    const bool scored = tokens > 0;
    std::snprintf(line, sizeof(line), "%20s %14s %9s %11s\n", label.c_str(), format_count(tokens).c_str(),
                  scored ? format_fixed(loss, 4).c_str() : "-",
                  scored ? format_fixed(std::exp(loss), 2).c_str() : "-");
    text += line;
  };
  for (const PositionBucket& bucket : buckets)
    row(cat(format_count(bucket.begin), " - ", format_count(bucket.end - 1)), bucket.target_tokens,
        bucket.mean());
  row("all", target_tokens(), loss());
  return text;
}

std::vector<int64_t> power_of_two_edges(int64_t sequence_tokens) {
  constexpr int64_t kSmallestBucket = 64;
  std::vector<int64_t> edges{sequence_tokens};
  for (int64_t edge = sequence_tokens / 2; edge >= kSmallestBucket; edge /= 2) edges.push_back(edge);
  edges.push_back(0);
  std::reverse(edges.begin(), edges.end());
  return edges;
}

std::vector<int64_t> equal_edges(int64_t sequence_tokens, int64_t buckets) {
  buckets = std::min(buckets, sequence_tokens);
  std::vector<int64_t> edges;
  for (int64_t i = 0; i <= buckets; ++i) edges.push_back(sequence_tokens * i / buckets);
  return edges;
}

PositionLoss evaluate_loss_by_position(Engine& engine, EvaluationLoader& loader,
                                       const std::vector<int64_t>& edges) {
  return evaluate_loss_by_position(engine, loader, edges, [] { return false; }).value();
}

std::optional<PositionLoss> evaluate_loss_by_position(Engine& engine, EvaluationLoader& loader,
                                                      const std::vector<int64_t>& edges,
                                                      const std::function<bool()>& give_up) {
  const at::NoGradGuard no_grad;
  TRIREME_ASSERT(edges.size() >= 2 && edges.front() == 0, "bucket edges start at 0");
  const size_t buckets = edges.size() - 1;
  std::vector<double> loss_sums(buckets);
  std::vector<int64_t> target_tokens(buckets);
  while (const auto batch = loader.next()) {
    if (give_up()) return std::nullopt;
    TRIREME_ASSERT(edges.back() == batch->layout.tokens, "the last bucket ends with the sequence");
    const at::Tensor loss_Bs = engine.evaluate(*batch).loss_Bs.to(at::kDouble).contiguous();
    const at::Tensor valid_Bs = batch->targets.ne(kIgnoredLabel);
    const at::Tensor position_Bs =
        positions_in_documents(*batch, engine.mesh().sp->rank()).view(valid_Bs.sizes());
    for (size_t i = 0; i < buckets; ++i) {
      const at::Tensor in_bucket_Bs =
          valid_Bs.logical_and(position_Bs.ge(edges[i])).logical_and(position_Bs.lt(edges[i + 1]));
      loss_sums[i] += loss_Bs.masked_select(in_bucket_Bs).sum().item<double>();
      target_tokens[i] += in_bucket_Bs.sum().item<int64_t>();
    }
  }
  loss_sums = engine.agreement().sum(loss_sums);
  target_tokens = engine.agreement().sum(target_tokens);
  PositionLoss result;
  result.sequence_tokens = edges.back();
  result.samples = loader.rows();
  for (size_t i = 0; i < buckets; ++i)
    result.buckets.push_back({edges[i], edges[i + 1], target_tokens[i], loss_sums[i]});
  if (result.target_tokens() == 0) throw DataError("no token of the evaluation set is a valid target");
  return result;
}

}  // namespace trireme
