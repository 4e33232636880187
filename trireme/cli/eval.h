// `trireme eval`: evaluations of a model.
//
//   loss      held-out loss by position in the context
//   answers   which answers of a set with prompts a model would write itself
//   needles   a needle in a haystack, by length and depth
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/evaluation.h"

namespace trireme {

// What the first two were asked, resolved.
struct EvalOptions : EvaluationOptions {
  SampleOptions samples;
};

// Of a set of documents.
struct SetEvaluationFlags : EvaluationFlags {
  std::filesystem::path eval_file;
  int64_t max_eval_samples = 0;
  SampleOptions samples;

  void list_set(OptionList& list, const std::string& eval_file_help);
  EvalOptions resolve(const RankIdentity& identity) const;
};

struct EvalFlags : SetEvaluationFlags {
  double validation_split_percentage = 0;
  int64_t buckets = 0;

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
