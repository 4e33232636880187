// Text files -> an indexed dataset: documents are read in order, encoded in parallel, written in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/data/text_source.h"
#include "trireme/tokenizer/tokenizer.h"

namespace trireme {

struct CorpusOptions {
  std::string field = "text";  // of .jsonl lines
  std::string field_flag = "--text_field";
  OnBadRecord on_bad_record = OnBadRecord::stop;
  bool append_end_of_text = true;  // to each document that does not end with it already
  int64_t vocab_size = 0;          // of the model that will read the set; 0: of the tokenizer
};

struct CorpusReport {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t longest_document_tokens = 0;
  int64_t prompts = 0;             // documents that begin with one
  int64_t prompt_tokens = 0;       // which are not predicted
  int64_t replaced_documents = 0;  // held wrong UTF-8, which became U+FFFD
  int64_t begun_documents = 0;     // began with what the tokenizer puts before each, which is there once
  SourceCounts source;
  double seconds = 0;

  // For people: how many prompts. Empty where there is none.
  std::string prompts_text() const;
  // For people: what of the text is not in the tokens as it was written. Empty where all is.
  std::vector<std::string> changed_text_lines() const;
};

// Writes PREFIX.bin, PREFIX.idx and PREFIX.set.json (set_fingerprint.h), encoding on the threads of
// at::parallel_for. `progress`, if given, gets the report so far from time to time. Throws as TextSource,
// Tokenizer and IndexedDatasetWriter do, and then leaves no files.
CorpusReport tokenize_corpus(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& inputs,
                             const std::filesystem::path& prefix, const CorpusOptions& options,
                             const std::function<void(const CorpusReport&)>& progress = {});

}  // namespace trireme
