// Which answers a model would write itself: a document with prompts (data/prompts.h) is answered exactly if
// each of its targets is the token that the model finds most likely. Greedy generation would then write just
// these tokens, so one forward pass tells what generation would, at any length and split over ranks.
//
//   tokens   p p p p a b c      the logits after the last p, a and b must be largest at a, b and c
//
// Each rank looks at its slice of tokens; ranks exchange only counts and sums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/engine/engine.h"

namespace trireme {

struct AnsweredDocument {
  int64_t tokens = 0;  // the document's, prompts included
  int64_t target_tokens = 0;
  int64_t wrong_tokens = 0;  // targets that are not the most likely token
  double loss_sum = 0;       // natural log

  bool exact() const { return wrong_tokens == 0; }
};

// The documents of the loader's rows that have a target, in the order of the rows. Collective; every rank gets
// the result. The rows must tell their documents: not Packing::concat.
std::vector<AnsweredDocument> evaluate_answers(Engine& engine, EvaluationLoader& loader);

struct AnswerScores {
  int64_t documents = 0;
  int64_t exact = 0;
  int64_t target_tokens = 0;
  int64_t right_tokens = 0;
  double loss_sum = 0;

  void add(const AnsweredDocument& document);
  double exact_share() const;
  double token_accuracy() const;
  double loss() const;  // mean over targets
  Json to_json() const;
};

// Of documents by their length: those of [begin, end) tokens.
struct ScoresOfLength {
  int64_t begin = 0;
  int64_t end = 0;
  AnswerScores scores;
};

struct AnswersByLength {
  std::vector<ScoresOfLength> lengths;
  AnswerScores all;

  Json to_json() const;
  std::string table() const;
};

// `edges` as power_of_two_edges gives them, of the longest document.
AnswersByLength by_length(const std::vector<AnsweredDocument>& documents, const std::vector<int64_t>& edges);

}  // namespace trireme
