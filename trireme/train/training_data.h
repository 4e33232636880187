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

// A stretch of a set's token stream.
struct TokenSource {
  std::shared_ptr<const IndexedDataset> set;
  TokenSpan range;
};

struct TrainingData {
  TokenSource train;
  std::optional<TokenSource> held_out;
};

// What a --train_file or --eval_file names, before anything is opened.
struct TextToTokenize {
  std::filesystem::path input;           // a tokenized PREFIX, a file of text, or a folder of them
  std::filesystem::path tokenizer_from;  // folder with tokenizer.json
  std::filesystem::path prefix;          // where the tokens of text are written
  std::string text_field;
  bool append_eos = true;
  int64_t vocab_size = 0;
  bool reuse = false;  // tokens that are at `prefix` already are those of `input`
};

// Opens `text.input` if rank 0 finds a tokenized set there; else rank 0 tokenizes it to `text.prefix` and every rank opens
// that. Collective. Throws ConfigError when nothing is there, or a rank finds no set where rank 0 does, or one of another number
// of tokens (that rank's error names it); DataError when there is nothing in it.
std::shared_ptr<const IndexedDataset> open_tokens(const TextToTokenize& text, int rank, Agreement& agreement);

// What a run reads: its inputs, and on rank 0 what they hold (data_sources.h).
struct DataSources {
  TextToTokenize train;
  std::optional<TextToTokenize> eval;
  Json train_source, eval_source;  // null on the other ranks
};
// Looks at the inputs, and writes but what it remembers of them (remembered_checksums.h). The tokens of text have prefixes named
// by what the text holds. A text may be gone where the run goes on from `checkpoint`, whose run trained on it, and the tokens made
// of it are whole in the run's folder: `note` is told. Collective.
DataSources look_at_sources(const TrainOptions& options, int64_t vocab_size,
                            const std::optional<std::filesystem::path>& checkpoint, int rank,
                            Agreement& agreement, const std::function<void(const std::string&)>& note);
// Collective.
TrainingData open_training_data(const DataSources& sources, double validation_split_percentage, int rank,
                                Agreement& agreement);

}  // namespace trireme
