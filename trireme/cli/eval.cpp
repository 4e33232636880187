#include "trireme/cli/eval.h"

#include <algorithm>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/option_value.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/held_out_split.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/train/check_options.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/training_data.h"

namespace trireme {

void SetEvaluationFlags::list_set(OptionList& list, const std::string& eval_file_help) {
  list_model(list);
  list.path("eval_file", eval_file, eval_file_help).required();
  list.count("max_eval_samples", max_eval_samples, from_to(0, kMostTokens), "samples at most; 0: all");
  list_sample_options(list, samples);
  list_engine(list);
}

EngineOptions SetEvaluationFlags::resolve(const RankIdentity& identity) const {
  return EvaluationFlags::resolve(identity, samples.max_seq_length);
}

namespace {

bool packs_as_run(const SetEvaluationFlags& flags, const OptionParser& parser) {
  return flags.packs_as_run && !flags.checkpoint.empty() && !parser.given("packing");
}

// Flags are refused before the ranks join.
EngineOptions options_of_flags(const SetEvaluationFlags& flags, const OptionParser& parser) {
  refuse_flags_of_backward(parser);
  refuse_unread_text_flags(parser, {flags.eval_file});
  EngineOptions options = flags.resolve(rank_identity_from_environment());
  if (!packs_as_run(flags, parser)) check_packing(flags.samples.packing.kind, options);
  return options;
}

void pack_as_run(SampleOptions& samples, const std::filesystem::path& checkpoint,
                 const OptionParser& parser) {
  const std::string file = (checkpoint / kTrainerStateFile).string();
  const Json options = object_value(read_json(file), "options", file);
  OptionList list;
  list_sample_options(list, samples);
  for (const Option& option : list.options()) {
    const bool packs = option.name == "packing" || option.name == "long_documents";
    if (packs && !parser.given(option.name) && options.contains(option.name))
      option.write(parse_option_value(option, options[option.name], cat(file, ": ")));
  }
}

std::string packing_text(PackingRule packing) {
  return cat("packing ", name_of(packing.kind),
             packing.whole_documents() ? cat(", long_documents ", name_of(packing.long_documents)) : "",
             "\n");
}

}  // namespace

SetEvaluation::SetEvaluation(const SetEvaluationFlags& flags, const OptionParser& parser)
    : Evaluation(flags, parser, options_of_flags(flags, parser)), max_eval_samples_(flags.max_eval_samples) {
  SampleOptions samples = flags.samples;
  if (packs_as_run(flags, parser))
    agreement().all_or_none(cat("reading ", checkpoint().string()), [&] {
      pack_as_run(samples, checkpoint(), parser);
      check_packing(samples.packing.kind, options());
    });
  agreement().all_or_none(cat("reading the tokenizer of ", model_dir().string()),
                          [&] { samples_ = resolve_samples(samples, config(), model_dir()); });
  read_weights();
  set_ = open(flags.eval_file, samples_);
}

EvaluationLoader SetEvaluation::loader(TokenSpan range) {
  const int64_t tokens = samples_.max_seq_length;
  check_positions(std::min(tokens, longest_context_tokens(*set_, samples_.packing, tokens)));
  if (range != whole_set(*set_)) note(held_out_note(*set_, range));
  for (const std::string& text : sample_notes({set_, range}, samples_.packing, tokens)) note(text);
  EvaluationLoader rows(set_, range, loader_options(samples_, tokens));
  if (max_eval_samples_ > 0) rows.limit_rows(max_eval_samples_);
  return rows;
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
  SetEvaluation evaluation(flags, parser);
  const IndexedDataset& set = evaluation.set();
  EvaluationLoader loader =
      evaluation.loader(flags.validation_split_percentage > 0
                            ? split_held_out(set, flags.validation_split_percentage / 100).held_out
                            : whole_set(set));
  const int64_t sequence_tokens = flags.samples.max_seq_length;
  const PositionLoss result = evaluate_loss_by_position(
      evaluation.engine(), loader,
      flags.buckets > 0 ? equal_edges(sequence_tokens, flags.buckets) : power_of_two_edges(sequence_tokens));
  Json record = result.to_json();
  const PackingRule packing = evaluation.packing();
  record["packing"] = name_of(packing.kind);
  if (packing.whole_documents()) record["long_documents"] = name_of(packing.long_documents);
  if (evaluation.reports())
    std::cout << (flags.json ? record.dump(1) + "\n" : packing_text(packing) + result.table()) << std::flush;
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
