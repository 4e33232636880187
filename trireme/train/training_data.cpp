#include "trireme/train/training_data.h"

#include <system_error>

#include "trireme/base/error.h"
#include "trireme/train/tokenize_text.h"

namespace fs = std::filesystem;

namespace trireme {

std::shared_ptr<const IndexedDataset> open_tokens(const TextToTokenize& text, int rank,
                                                  Agreement& agreement) {
  fs::path prefix = text.input;
  if (!is_indexed_dataset(prefix)) {
    prefix = text.prefix;
    agreement.all_or_none(cat("tokenizing ", text.input.string()), [&] {
      if (rank != 0 || (text.reuse && is_indexed_dataset(prefix))) return;
      std::error_code ignored;
      if (!fs::exists(text.input, ignored))
        throw ConfigError(cat("there is no file, folder or tokenized set (PREFIX.bin and PREFIX.idx) at ",
                              text.input.string()));
      tokenize_text(text);
    });
  }
  std::shared_ptr<const IndexedDataset> set;
  agreement.all_or_none(cat("opening ", prefix.string()), [&] {
    set = std::make_shared<IndexedDataset>(prefix);
    if (set->tokens() == 0) throw DataError(cat(set->path().string(), ": the set holds no tokens"));
  });
  return set;
}

TrainingData open_training_data(const TrainOptions& options, int64_t vocab_size, bool resumed, int rank,
                                Agreement& agreement) {
  const auto text = [&](const fs::path& input, const char* name) {
    return TextToTokenize{input,
                          options.model_dir,
                          options.output_dir / "data" / name,
                          options.text_field,
                          options.append_eos,
                          vocab_size,
                          resumed};
  };
  TrainingData data;
  data.train.set = open_tokens(text(options.train_file, "train"), rank, agreement);
  data.train.range = whole_set(*data.train.set);
  if (options.validation_split_percentage > 0) {
    const HeldOutSplit split = split_held_out(*data.train.set, options.validation_split_percentage / 100);
    data.train.range = split.train;
    data.held_out = TokenSource{data.train.set, split.held_out};
  } else if (!options.eval_file.empty()) {
    const auto set = open_tokens(text(options.eval_file, "eval"), rank, agreement);
    data.held_out = TokenSource{set, whole_set(*set)};
  }
  return data;
}

}  // namespace trireme
