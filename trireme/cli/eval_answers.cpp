// `trireme eval answers`: a set with prompts -> how many documents the model would answer as they are.
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/held_out_split.h"
#include "trireme/eval/answers.h"
#include "trireme/eval/loss_by_position.h"

namespace trireme {
namespace {

// An answer without its prompt, or one that sees other documents, says nothing.
void check_packing_of_answers(Packing packing) {
  if (packing != Packing::best_fit && packing != Packing::none)
    throw ConfigError(cat("--packing ", name_of(packing),
                          " cuts documents, and an answer would lose its prompt: give best_fit or none"));
}

void check_answers(const IndexedDataset& set, int64_t sequence_tokens) {
  if (set.prompts().empty())
    throw DataError(cat(set.path().string(),
                        ": has no prompts, so all of it would be an answer; give lines with prompt and "
                        "completion, or chats (docs/data.md), or ask for trireme eval loss"));
  if (const int64_t longest = set.longest_document(); longest > sequence_tokens)
    throw ConfigError(cat("--max_seq_length ", sequence_tokens, ": the longest document has ",
                          format_count(longest), " tokens, and would lose its prompt: give at least ",
                          longest));
}

}  // namespace

void AnswersFlags::declare(OptionList& list) {
  list_set(list, "a .jsonl file of lines with prompt and completion, or the PREFIX of a set with prompts");
}

int run_eval_answers(const std::vector<std::string>& arguments) {
  AnswersFlags flags;
  OptionParser parser("eval answers",
                      "Shares of documents and tokens that greedy generation would write as they are, by the "
                      "documents' length.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  refuse_flags_of_backward(parser);
  refuse_unread_text_flags(parser, {flags.eval_file});
  check_packing_of_answers(flags.samples.packing);
  const EvalOptions options = flags.resolve(rank_identity_from_environment());
  Evaluation evaluation(flags, parser, options);
  const auto set = evaluation.open(flags.eval_file, options.samples);
  const int64_t sequence_tokens = options.samples.max_seq_length;
  check_answers(*set, sequence_tokens);
  evaluation.check_positions(set->longest_document());
  EvaluationLoader loader(set, whole_set(*set), evaluation.loader_options(options.samples, sequence_tokens));
  if (flags.max_eval_samples > 0) loader.limit_rows(flags.max_eval_samples);
  const AnswersByLength result =
      by_length(evaluate_answers(evaluation.engine(), loader), power_of_two_edges(sequence_tokens));
  if (evaluation.reports())
    std::cout << (flags.json ? result.to_json().dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace trireme
