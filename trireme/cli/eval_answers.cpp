// `trireme eval answers`: a set with prompts -> how many documents the model would answer as they are.
#include <algorithm>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/held_out_split.h"
#include "trireme/eval/answers.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/train/training_data.h"

namespace trireme {
namespace {

// An answer without its prompt, or one that sees other documents, says nothing; nor does half of one.
void check_packing_of_answers(PackingRule packing) {
  if (!packing.whole_documents())
    throw ConfigError(cat("--packing ", name_of(packing.kind),
                          " cuts documents, and an answer would lose its prompt: give best_fit or none"));
  if (packing.long_documents == LongDocuments::truncate)
    throw ConfigError(
        "--long_documents truncate: of a document that is cut off, half an answer would be judged; give "
        "skip");
}

void check_answers(const IndexedDataset& set, PackingRule packing, int64_t sequence_tokens) {
  if (set.prompts().empty())
    throw DataError(cat(set.path().string(),
                        ": has no prompts, so all of it would be an answer; give lines with prompt and "
                        "completion, or chats (docs/data.md), or ask for trireme eval loss"));
  const int64_t longest = set.longest_document();
  if (longest > sequence_tokens && packing.long_documents == LongDocuments::cut)
    throw ConfigError(cat("--max_seq_length ", sequence_tokens, ": the longest document has ",
                          format_count(longest), " tokens, and would lose its prompt: give at least ",
                          longest, ", or leave such documents out with --long_documents skip"));
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
  check_answers(*set, options.samples.packing, sequence_tokens);
  evaluation.check_positions(longest_context_tokens(*set, options.samples.packing, sequence_tokens));
  for (const std::string& text :
       sample_notes({set, whole_set(*set)}, options.samples.packing, sequence_tokens))
    evaluation.note(text);
  EvaluationLoader loader(set, whole_set(*set), evaluation.loader_options(options.samples, sequence_tokens));
  if (flags.max_eval_samples > 0) loader.limit_rows(flags.max_eval_samples);
  const AnswersByLength result =
      by_length(evaluate_answers(evaluation.engine(), loader), power_of_two_edges(sequence_tokens));
  if (evaluation.reports())
    std::cout << (flags.json ? result.to_json().dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace trireme
