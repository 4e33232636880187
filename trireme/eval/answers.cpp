#include "trireme/eval/answers.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

// What is summed of a document, in this order.
constexpr int64_t kSums = 4;  // tokens, targets, wrong tokens, losses

double share_of(int64_t count, int64_t all) {
  return all > 0 ? static_cast<double>(count) / static_cast<double>(all) : 0;
}

struct ScoredTargets {  // [B, s] on the CPU
  at::Tensor is_wrong;  // bool: not the most likely token
  at::Tensor loss;      // double
};

// Collective, as Engine::evaluate.
ScoredTargets score_targets(Engine& engine, const TokenBatch& batch) {
  const at::Tensor targets = batch.targets.flatten(), is_wrong = at::zeros(targets.sizes(), at::kBool);
  const auto compare = [&](int64_t first_row, const at::Tensor& logits) {
    const int64_t end = first_row + logits.size(0);
    const at::Tensor of_rows = targets.slice(0, first_row, end);
    const at::Tensor rows = of_rows.ne(kIgnoredLabel).nonzero().squeeze(1);
    if (rows.numel() == 0) return;
    const at::Tensor likely = logits.index_select(0, rows.to(logits.device())).argmax(1).to(at::kCPU);
    is_wrong.slice(0, first_row, end).index_put_({rows}, likely.ne(of_rows.index_select(0, rows)));
  };
  const at::Tensor loss = engine.evaluate(batch, compare).loss_Bs.to(at::kDouble).contiguous();
  return {is_wrong.view(batch.targets.sizes()), loss};
}

// This rank's sums of each document of the batch that may have a target, kSums each. One of a single token has
// none; each token of padding is one.
std::vector<double> sums_of_documents(Engine& engine, const TokenBatch& batch) {
  const ScoredTargets scored = score_targets(engine, batch);
  const at::Tensor targets = batch.targets.contiguous();
  const auto* target = targets.const_data_ptr<int64_t>();
  const auto* is_wrong = scored.is_wrong.const_data_ptr<bool>();
  const auto* loss_of = scored.loss.const_data_ptr<double>();
  const TokenSpans spans = batch.layout.spans(engine.mesh().sp->rank());
  std::vector<double> sums;
  for (const Documents& documents : batch.documents) {
    const std::vector<int64_t>& borders = documents.cu_seqlens();
    std::vector<size_t> sums_begin;  // of each document
    for (size_t i = 1; i < borders.size(); ++i) {
      sums_begin.push_back(sums.size());
      const int64_t tokens = borders[i] - borders[i - 1];
      if (tokens == 1) continue;
      sums.push_back(engine.mesh().sp->rank() == 0 ? static_cast<double>(tokens) : 0);
      sums.insert(sums.end(), kSums - 1, 0);
    }
    for (const TokenSpan& span : spans) {
      for (int64_t t = span.begin; t < span.end; ++t, ++target, ++is_wrong, ++loss_of) {
        if (*target == kIgnoredLabel) continue;
        const auto document = std::ranges::upper_bound(borders, t) - borders.begin() - 1;
        double* sum = &sums[sums_begin[static_cast<size_t>(document)]];
        sum[1] += 1;
        sum[2] += *is_wrong ? 1 : 0;
        sum[3] += *loss_of;
      }
    }
  }
  return sums;
}

}  // namespace

std::vector<AnsweredDocument> evaluate_answers(Engine& engine, EvaluationLoader& loader) {
  const at::NoGradGuard no_grad;
  Agreement agreement = engine.agreement();
  const int sharing = engine.mesh().sp->size();
  std::vector<AnsweredDocument> documents;
  while (const auto batch = loader.next()) {
    TRIREME_ASSERT(!batch->documents.empty(), "rows without documents");
    std::vector<double> sums = sums_of_documents(engine, *batch);
    sums.resize(static_cast<size_t>(agreement.largest(std::ssize(sums))));
    // Groups of ranks that share a sample follow one another, as their samples do.
    const auto of_ranks = agreement.gather(sums);
    for (size_t group = 0; group < of_ranks.size(); group += static_cast<size_t>(sharing)) {
      for (size_t i = 0; i < sums.size(); i += kSums) {
        std::array<double, kSums> all{};
        for (size_t rank = group; rank < group + static_cast<size_t>(sharing); ++rank)
          for (size_t k = 0; k < kSums; ++k) all[k] += of_ranks[rank][i + k];
        const auto count = [&](size_t k) { return static_cast<int64_t>(all[k]); };
        if (count(1) > 0) documents.push_back({count(0), count(1), count(2), all[3]});
      }
    }
  }
  if (documents.empty()) throw DataError("no token of the evaluation set is a valid target");
  return documents;
}

void AnswerScores::add(const AnsweredDocument& document) {
  ++documents;
  exact += document.exact() ? 1 : 0;
  target_tokens += document.target_tokens;
  right_tokens += document.target_tokens - document.wrong_tokens;
  loss_sum += document.loss_sum;
}

double AnswerScores::exact_share() const {
  return share_of(exact, documents);
}

double AnswerScores::token_accuracy() const {
  return share_of(right_tokens, target_tokens);
}

double AnswerScores::loss() const {
  return target_tokens > 0 ? loss_sum / static_cast<double>(target_tokens) : 0;
}

Json AnswerScores::to_json() const {
  return {{"documents", documents},
          {"exact", exact},
          {"exact_share", exact_share()},
          {"target_tokens", target_tokens},
          {"token_accuracy", token_accuracy()},
          {"loss", loss()}};
}

AnswersByLength by_length(const std::vector<AnsweredDocument>& documents, const std::vector<int64_t>& edges) {
  AnswersByLength result;
  for (size_t i = 1; i < edges.size(); ++i) result.lengths.push_back({edges[i - 1] + 1, edges[i] + 1, {}});
  for (const AnsweredDocument& document : documents) {
    result.all.add(document);
    const auto length = std::ranges::find_if(
        result.lengths, [&](const ScoresOfLength& scores) { return document.tokens < scores.end; });
    TRIREME_ASSERT(length != result.lengths.end(), "a document of ", document.tokens, " tokens");
    length->scores.add(document);
  }
  return result;
}

Json AnswersByLength::to_json() const {
  Json rows = Json::array();
  for (const ScoresOfLength& length : lengths) {
    if (length.scores.documents == 0) continue;
    Json row = length.scores.to_json();
    row["begin"] = length.begin;
    row["end"] = length.end;
    rows.push_back(row);
  }
  Json record = all.to_json();
  record["by_length"] = rows;
  return record;
}

std::string AnswersByLength::table() const {
  std::string text = "     document tokens      documents     exact    tokens right      loss\n";
  const auto row = [&](const std::string& label, const AnswerScores& scores) {
    char line[128];
    std::snprintf(line, sizeof(line), "%20s %14s %8.1f%% %14.1f%% %9.4f\n", label.c_str(),
                  format_count(scores.documents).c_str(), 100 * scores.exact_share(),
                  100 * scores.token_accuracy(), scores.loss());
    text += line;
  };
  for (const ScoresOfLength& length : lengths)
    if (length.scores.documents > 0)
      row(cat(format_count(length.begin), " - ", format_count(length.end - 1)), length.scores);
  row("all", all);
  return text;
}

}  // namespace trireme
