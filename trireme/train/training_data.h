// The token sets of a run: a tokenized set as it is, or text that rank 0 tokenizes once into the run's
// folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "trireme/comm/agreement.h"
#include "trireme/data/held_out_split.h"
#include "trireme/train/train_options.h"

namespace trireme {

// A span of a set's token stream.
struct TokenSource {
  std::shared_ptr<const IndexedDataset> set;
  TokenSpan range;
};

struct TrainingData {
  TokenSource train;
  std::optional<TokenSource> held_out;
};

// The input of --train_file or --eval_file, before it is opened.
struct TextToTokenize {
  std::filesystem::path input;           // a tokenized PREFIX, a file of text, or a folder of them
  std::filesystem::path tokenizer_from;  // folder with tokenizer.json
  std::filesystem::path prefix = {};  // where the tokens of text are written; if they are there, they count
  CorpusOptions corpus = {};
};

// Opens `text.input` if rank 0 finds a tokenized set there. Else rank 0 tokenizes it to `text.prefix`, and
// every rank opens the result. Collective. Throws ConfigError when nothing is there, or when a rank finds no
// set where rank 0 does or a set with another number of tokens (that rank's error names it); DataError when
// the set is empty. On rank 0 `note` is told of lines that were skipped.
std::shared_ptr<const IndexedDataset> open_tokens(
    const TextToTokenize& text, int rank, Agreement& agreement,
    const std::function<void(const std::string&)>& note = nullptr);

// The inputs of a run and, on rank 0, the description of their content (data_sources.h).
struct DataSources {
  TextToTokenize train;
  std::optional<TextToTokenize> eval;
  Json train_source, eval_source;  // null on the other ranks
};
// Describes the inputs; writes only the remembered checksums (remembered_checksums.h). The prefix of a text's
// tokens names the text's content. A text may be gone if the run resumes from `checkpoint`, whose run had it
// for one of its stages, and its tokens are whole in the run's folder: `note` is told. Collective.
DataSources look_at_sources(const TrainOptions& options, int64_t vocab_size,
                            const std::optional<std::filesystem::path>& checkpoint, Agreement& agreement,
                            const std::function<void(const std::string&)>& note);
// What of LoaderOptions a run's options decide beside its `samples` (sample_loader_options), for steps of
// `ranks` ranks. Which of them it is, dp_index and sp_rank, stays 0.
LoaderOptions step_loader_options(const LoaderOptions& samples, const TrainOptions& options,
                                  int64_t sequence_tokens, int ranks);

// Collective.
TrainingData open_training_data(const DataSources& sources, double validation_split_percentage, int rank,
                                Agreement& agreement, const std::function<void(const std::string&)>& note);

// Writes the planned batch's document_tokens, which --recompute auto alone reads: the lengths of all documents
// of the set are read for it.
void plan_with_documents(EngineOptions& engine, const TokenSource& train, PackingRule packing);

// For people: how much of a set is prompts, which documents are longer than a sample, and where answers lose
// their prompts. The lengths of all documents are read. Not collective.
std::vector<std::string> sample_notes(const TokenSource& tokens, PackingRule packing,
                                      int64_t sequence_tokens);

}  // namespace trireme
