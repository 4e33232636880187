// `trireme eval`: evaluations of a model.
//
//   loss      held-out loss by position in the context
//   answers   which answers of a set with prompts a model would write itself
//   needles   a needle in a haystack, by length and depth
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/cli/evaluation.h"
#include "trireme/data/evaluation_loader.h"

namespace trireme {

// Of a set of documents: the first two.
struct SetEvaluationFlags : EvaluationFlags {
  std::filesystem::path eval_file;
  int64_t max_eval_samples = 0;
  SampleOptions samples;
  bool packs_as_run = false;  // that of --checkpoint, where no flag says otherwise

  void list_set(OptionList& list, const std::string& eval_file_help);
  EngineOptions resolve(const RankIdentity& identity) const;
};

class SetEvaluation : public Evaluation {
 public:
  // Reads the weights and opens the set. Collective. Throws what these throw, and ConfigError for flags that
  // nothing reads.
  SetEvaluation(const SetEvaluationFlags& flags, const OptionParser& parser);

  const IndexedDataset& set() const { return *set_; }
  PackingRule packing() const { return samples_.packing; }
  // The rows of a range of the set, --max_eval_samples at most. Tells what is to be known of them.
  EvaluationLoader loader(TokenSpan range);

 private:
  int64_t max_eval_samples_;
  SampleOptions samples_;  // resolved
  std::shared_ptr<const IndexedDataset> set_;
};

struct EvalFlags : SetEvaluationFlags {
  double validation_split_percentage = 0;
  int64_t buckets = 0;

  EvalFlags() { packs_as_run = true; }
  void declare(OptionList& list);
};

struct AnswersFlags : SetEvaluationFlags {
  AnswersFlags() { samples.packing.kind = Packing::best_fit; }

  void declare(OptionList& list);
};

struct NeedlesFlags : EvaluationFlags {
  std::filesystem::path haystack;
  std::string lengths = "1k,4k";
  int64_t depths = 5;
  int64_t samples = 2;
  int64_t distractors = 0;
  int64_t seed = 0;

  void declare(OptionList& list);
  // Of `lengths`. Throws ConfigError.
  std::vector<int64_t> lengths_in_tokens() const;
};

int run_eval(const std::vector<std::string>& arguments);
int run_eval_answers(const std::vector<std::string>& arguments);
int run_eval_needles(const std::vector<std::string>& arguments);

}  // namespace trireme
