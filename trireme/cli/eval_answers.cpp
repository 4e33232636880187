// `trireme eval answers`: a set with prompts -> how many documents the model would answer as they are.
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/eval.h"
#include "trireme/data/held_out_split.h"
#include "trireme/eval/answers.h"
#include "trireme/eval/loss_by_position.h"

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
    throw DataError(cat(set.name(),
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
  check_packing_of_answers(flags.samples.packing);
  SetEvaluation evaluation(flags, parser);
  const IndexedDataset& set = evaluation.set();
  const int64_t sequence_tokens = flags.samples.max_seq_length;
  check_answers(set, flags.samples.packing, sequence_tokens);
  EvaluationLoader loader = evaluation.loader(whole_set(set));
  const AnswersByLength result =
      by_length(evaluate_answers(evaluation.engine(), loader), power_of_two_edges(sequence_tokens));
  if (evaluation.reports())
    std::cout << (flags.json ? result.to_json().dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace trireme
