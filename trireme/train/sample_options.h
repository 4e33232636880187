// How the documents of a set become samples of a model: what training and evaluation share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "trireme/base/option_list.h"
#include "trireme/data/row_reader.h"
#include "trireme/data/tokenize_corpus.h"
#include "trireme/model/model_config.h"

namespace trireme {

struct SampleOptions {
  CorpusOptions corpus = {};  // of text; its vocabulary is the model's
  PackingRule packing;
  int64_t max_seq_length = 1024;
  // Of encoders, whose loss is that of masked tokens.
  std::optional<double> mlm_probability = std::nullopt;  // none: 0.15
  std::optional<int64_t> mask_token_id = std::nullopt;   // none: "[MASK]" or "<mask>" of the tokenizer
};

void list_sample_options(OptionList& list, SampleOptions& options);

// "[MASK]" or "<mask>" of the folder's tokenizer.json; none: it has neither, or is not there.
std::optional<int64_t> find_mask_token(const std::filesystem::path& model_dir);

// With mask token and probability set for an encoder; neither for a decoder. Throws ConfigError: given for a
// decoder, a probability that is none, a mask token that is not given and not in the folder's tokenizer.json,
// or not in the vocabulary.
SampleOptions resolve_samples(const SampleOptions& options, const ModelConfig& config,
                              const std::filesystem::path& model_dir);

// What of LoaderOptions follows from resolved options and the model: packing, vocabulary, padding
// (pad_token_id, else eos_token_id, else 0) and masked tokens, with seed 0, which is that of every
// evaluation.
LoaderOptions sample_loader_options(const SampleOptions& resolved, const ModelConfig& config);

}  // namespace trireme
