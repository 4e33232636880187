#include "trireme/cli/mix.h"

#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/option_value.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/tokenize.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {
namespace {

SourceOfMix source_of(const std::string& word) {
  if (is_indexed_dataset(word)) return {word, 1};
  const size_t colon = word.rfind(':');
  const std::filesystem::path prefix = word.substr(0, colon);
  if (colon == std::string::npos || !is_indexed_dataset(prefix))
    throw ConfigError(cat(
        "--set ", word, ": ", indexed_dataset_bin(prefix).string(), " and ",
        indexed_dataset_idx(prefix).filename().string(),
        " are not both there; expected PREFIX or PREFIX:WEIGHT of sets that trireme tokenize or python -m "
        "trireme.chats made"));
  const double weight = parse_real(word.substr(colon + 1), "--set " + word);
  if (weight <= 0)
    throw ConfigError(
        cat("--set ", word, ": got the weight ", number_text(weight), ", expected a number above 0"));
  return {prefix, weight};
}

void print_report(const MixReport& report, const std::filesystem::path& output) {
  std::cout << "wrote " << indexed_dataset_bin(output).string() << " and "
            << indexed_dataset_idx(output).string() << "\n  documents           "
            << format_count(report.documents) << "\n  tokens              " << format_count(report.tokens)
            << "\n  longest document    " << format_count(report.longest_document_tokens) << " tokens\n";
  if (report.prompt_tokens > 0)
    std::cout << "  prompts             " << format_count(report.prompt_tokens)
              << " tokens, which are not predicted\n";
  for (const MixReport::OfSource& source : report.sources)
    std::cout << "  "
              << format_percent(static_cast<double>(source.tokens) / static_cast<double>(report.tokens))
              << "  " << source.prefix.string() << ": " << format_count(source.documents) << " documents, "
              << format_count(source.tokens) << " tokens, read " << format_fixed(source.times_read, 2)
              << " times\n";
  if (!report.fingerprint)
    std::cout
        << "  not every set says which tokenizer made it (PREFIX.set.json), so this one does not either\n";
  for (const std::string& note : report.notes) std::cout << "  " << note << "\n";
  std::cout << std::flush;
}

}  // namespace

void MixFlags::declare(OptionList& list) {
  list.paths("set", sets,
             "PREFIX of a set, or PREFIX:WEIGHT; its share of the tokens is its part of all weights")
      .required();
  list.path("output", output, "PREFIX of the set to write").required();
  list.count(
      "tokens", how.tokens, from_to(0, kMostTokens),
      "of the mix, takes 2g; sets that are too small are read again; 0: as many as are there without that");
  list.count("seed", how.seed, at_least(0), "of the order in which each set's documents come");
  list.flag("overwrite", overwrite, "replace a set of that name");
}

std::vector<SourceOfMix> MixFlags::sources() const {
  std::vector<SourceOfMix> all;
  for (const std::filesystem::path& word : sets) all.push_back(source_of(word.string()));
  return all;
}

int run_mix(const std::vector<std::string>& arguments) {
  MixFlags flags;
  OptionParser parser("mix", "Several tokenized sets as one, in which each has a share of the tokens.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  if (!flags.overwrite) refuse_to_replace(flags.output);
  print_report(mix_sets(flags.sources(), flags.output, flags.how), flags.output);
  return 0;
}

}  // namespace trireme
