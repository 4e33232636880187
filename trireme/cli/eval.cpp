#include "trireme/cli/eval.h"

#include <algorithm>
#include <iostream>

#include "trireme/cli/commands.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/held_out_split.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/train/check_options.h"
#include "trireme/train/training_data.h"

namespace trireme {

void SetEvaluationFlags::list_set(OptionList& list, const std::string& eval_file_help) {
  list_model(list);
  list.path("eval_file", eval_file, eval_file_help).required();
  list.count("max_eval_samples", max_eval_samples, from_to(0, kMostTokens), "samples at most; 0: all");
  list_sample_options(list, samples);
  list_engine(list);
}

EvalOptions SetEvaluationFlags::resolve(const RankIdentity& identity) const {
  EvalOptions options{EvaluationFlags::resolve(identity, samples.max_seq_length), {}};
  options.samples = resolve_samples(samples, read_model_config(options.model_dir), options.model_dir);
  check_packing(options.samples.packing.kind, options.engine);
  return options;
}

void EvalFlags::declare(OptionList& list) {
  list_set(list, "text (.txt, .jsonl or a folder), or the PREFIX of a tokenized set");
  list.real("validation_split_percentage", validation_split_percentage, from_to_below(0, 100),
            "only this end of --eval_file; 0: all of it");
  list.count("buckets", buckets, from_to(0, kMostTokens), "equal ranges of positions; 0: by powers of two");
}

namespace {

int run_loss(const std::vector<std::string>& arguments) {
  EvalFlags flags;
  OptionParser parser("eval loss",
                      "Mean loss of each range of positions over a held-out set, split over ranks.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  refuse_flags_of_backward(parser);
  refuse_unread_text_flags(parser, {flags.eval_file});
  const EvalOptions options = flags.resolve(rank_identity_from_environment());
  Evaluation evaluation(flags, parser, options);
  const auto set = evaluation.open(flags.eval_file, options.samples);
  const int64_t sequence_tokens = options.samples.max_seq_length;
  evaluation.check_positions(
      std::min(sequence_tokens, longest_context_tokens(*set, options.samples.packing, sequence_tokens)));
  const TokenSpan range = flags.validation_split_percentage > 0
                              ? split_held_out(*set, flags.validation_split_percentage / 100).held_out
                              : whole_set(*set);
  for (const std::string& text : sample_notes({set, range}, options.samples.packing, sequence_tokens))
    evaluation.note(text);
  EvaluationLoader loader(set, range, evaluation.loader_options(options.samples, sequence_tokens));
  if (flags.max_eval_samples > 0) loader.limit_rows(flags.max_eval_samples);
  const PositionLoss result = evaluate_loss_by_position(
      evaluation.engine(), loader,
      flags.buckets > 0 ? equal_edges(sequence_tokens, flags.buckets) : power_of_two_edges(sequence_tokens));
  Json record = result.to_json();
  record["packing"] = name_of(options.samples.packing.kind);
  if (evaluation.reports()) std::cout << (flags.json ? record.dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  return run_one_of(
      "eval",
      {{"loss", "held-out loss by position in the context", run_loss},
       {"answers", "how many answers of a set with prompts the model would write itself", run_eval_answers},
       {"needles", "a needle in a haystack, by length and depth", run_eval_needles}},
      arguments);
}

}  // namespace trireme
