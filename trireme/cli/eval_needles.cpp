// `trireme eval needles`: a haystack -> how often a fact in it is found, by length and depth.
#include <algorithm>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/base/split.h"
#include "trireme/base/splitmix64.h"
#include "trireme/cli/eval.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/eval/answers.h"
#include "trireme/eval/needles.h"

namespace trireme {
namespace {

constexpr int64_t kMostDepths = 101;
constexpr int64_t kMostSamples = 10'000;

double depth_of(int64_t index, int64_t depths) {
  return depths == 1 ? 0.5 : static_cast<double>(index) / static_cast<double>(depths - 1);
}

std::filesystem::path set_of_length(const Evaluation& evaluation, int64_t tokens) {
  return evaluation.scratch() / cat("needles-", tokens);
}

// All samples of one length, depth by depth.
void write_samples(const std::filesystem::path& prefix, const NeedlesFlags& flags, int64_t tokens,
                   const Tokenizer& tokenizer, const IndexedDataset& haystack, int64_t vocab_size) {
  IndexedDatasetWriter writer(prefix, vocab_size);
  for (int64_t depth = 0; depth < flags.depths; ++depth) {
    for (int64_t i = 0; i < flags.samples; ++i) {
      const auto number = static_cast<uint64_t>(depth * flags.samples + i);
      const EncodedDocument sample =
          make_needle_sample(tokenizer, haystack,
                             {.tokens = tokens,
                              .depth = depth_of(depth, flags.depths),
                              .distractors = flags.distractors,
                              .seed = splitmix64(splitmix64(static_cast<uint64_t>(flags.seed)) ^ number) ^
                                      static_cast<uint64_t>(tokens)});
      writer.add_document(sample.ids, sample.prompt_tokens);
    }
  }
  writer.finish();
}

struct NeedleScores {
  int64_t tokens = 0;
  std::vector<AnswerScores> depths;
  AnswerScores all;
};

NeedleScores evaluate_length(Evaluation& evaluation, const NeedlesFlags& flags, int64_t tokens) {
  Engine& engine = evaluation.engine();
  const std::filesystem::path prefix = set_of_length(evaluation, tokens);
  std::shared_ptr<const IndexedDataset> set;
  engine.agreement().all_or_none(cat("opening ", prefix.string()),
                                 [&] { set = std::make_shared<const IndexedDataset>(prefix); });
  EvaluationLoader loader(set, whole_set(*set),
                          evaluation.loader_options({.packing = {.kind = Packing::none}}, tokens));
  const std::vector<AnsweredDocument> documents = evaluate_answers(engine, loader);
  TRIREME_ASSERT(std::ssize(documents) == flags.depths * flags.samples, documents.size(), " samples");
  NeedleScores scores{tokens, std::vector<AnswerScores>(static_cast<size_t>(flags.depths)), {}};
  for (int64_t i = 0; i < std::ssize(documents); ++i) {
    const AnsweredDocument& document = documents[static_cast<size_t>(i)];
    scores.depths[static_cast<size_t>(i / flags.samples)].add(document);
    scores.all.add(document);
  }
  return scores;
}

std::string line_of(const std::string& label, const std::vector<std::string>& cells) {
  std::string line = label;
  line.insert(0, std::max<size_t>(12, label.size()) - label.size(), ' ');
  for (const std::string& cell : cells)
    line += std::string(std::max<size_t>(9, cell.size() + 1) - cell.size(), ' ') + cell;
  return line + "\n";
}

std::string heading(const NeedlesFlags& flags) {
  std::vector<std::string> cells;
  for (int64_t depth = 0; depth < flags.depths; ++depth)
    cells.push_back(format_percent(depth_of(depth, flags.depths), 0));
  cells.insert(cells.end(), {"all", "loss"});
  return cat("found, by tokens and depth of the needle, of ", flags.samples, " each\n",
             line_of("tokens", cells));
}

std::string row_of(const NeedleScores& scores) {
  std::vector<std::string> cells;
  for (const AnswerScores& depth : scores.depths) cells.push_back(format_percent(depth.exact_share(), 0));
  cells.push_back(format_percent(scores.all.exact_share(), 0));
  cells.push_back(format_fixed(scores.all.loss(), 4));
  return line_of(format_count(scores.tokens), cells);
}

Json record_of(const NeedleScores& scores) {
  Json record = scores.all.to_json(), depths = Json::array();
  for (size_t i = 0; i < scores.depths.size(); ++i) {
    Json depth = scores.depths[i].to_json();
    depth["depth"] = depth_of(static_cast<int64_t>(i), std::ssize(scores.depths));
    depths.push_back(depth);
  }
  record["tokens"] = scores.tokens;
  record["by_depth"] = depths;
  return record;
}

}  // namespace

void NeedlesFlags::declare(OptionList& list) {
  list_model(list);
  list.path("haystack", haystack, "text (.txt, .jsonl or a folder), or the PREFIX of a tokenized set")
      .required();
  list.text("lengths", lengths, "tokens of the samples, such as 4k,32k,128k");
  list.count("depths", depths, from_to(1, kMostDepths),
             "where needles lie, evenly from the haystack's begin to its end");
  list.count("samples", samples, from_to(1, kMostSamples), "of each length and depth");
  list.count("distractors", distractors, from_to(0, kMostDistractors),
             "needles beside it that answer other questions");
  list.count("seed", seed, at_least(0), "of needles and haystacks");
  list_engine(list);
}

std::vector<int64_t> NeedlesFlags::lengths_in_tokens() const {
  if (lengths.empty()) throw ConfigError("--lengths: give the tokens of the samples, such as 4k,32k,128k");
  std::vector<int64_t> tokens;
  for (const std::string& length : split_at_commas(lengths, "--lengths")) {
    tokens.push_back(parse_count(length, "--lengths"));
    if (tokens.back() < 1 || tokens.back() > kMostTokens)
      throw ConfigError(cat("--lengths ", lengths, ": a sample has 1 to ", kMostTokens, " tokens"));
  }
  return tokens;
}

int run_eval_needles(const std::vector<std::string>& arguments) {
  NeedlesFlags flags;
  OptionParser parser(
      "eval needles",
      "A needle in a haystack: how often a fact in a long text is found, by length and depth.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  refuse_flags_of_backward(parser);
  const std::vector<int64_t> lengths = flags.lengths_in_tokens();
  const int64_t longest = std::ranges::max(lengths);
  Evaluation evaluation(flags, parser, flags.resolve(rank_identity_from_environment(), longest));
  if (!evaluation.config().shifts_labels())
    throw ConfigError(
        "trireme eval needles asks a model that predicts the next token; this one (BERT) does not");
  evaluation.read_weights();
  evaluation.check_positions(longest);
  const auto haystack = evaluation.open(flags.haystack, {});
  if (haystack->tokens() < longest)
    evaluation.note(cat("the haystack has ", format_count(haystack->tokens()),
                        " tokens, and is repeated in samples of more"));
  Engine& engine = evaluation.engine();
  engine.agreement().while_rank_0_works("making samples with needles", [&] {
    const Tokenizer tokenizer = Tokenizer::load(evaluation.model_dir());
    for (const int64_t tokens : lengths)
      write_samples(set_of_length(evaluation, tokens), flags, tokens, tokenizer, *haystack,
                    engine.config().vocab_size);
  });
  Json records = Json::array();
  if (evaluation.reports() && !flags.json) std::cout << heading(flags) << std::flush;
  for (const int64_t tokens : lengths) {
    const NeedleScores scores = evaluate_length(evaluation, flags, tokens);
    records.push_back(record_of(scores));
    if (evaluation.reports() && !flags.json) std::cout << row_of(scores) << std::flush;
  }
  if (evaluation.reports() && flags.json) std::cout << records.dump(1) << std::endl;
  return 0;
}

}  // namespace trireme
