// A set whose token at position i of the stream has the id i: a batch then shows what was read.
#pragma once

#include <memory>
#include <vector>

#include "trireme/data/indexed_dataset.h"
#include "trireme/data/indexed_dataset_writer.h"

#include "tests/support/temporary_folder.h"

namespace trireme::testing {

constexpr int64_t kNumberedVocabulary = 2000;

struct NumberedSet {
  // Documents of these lengths, at most kNumberedVocabulary tokens together. The first of each document's
  // tokens may be a prompt.
  explicit NumberedSet(const std::vector<int64_t>& lengths, const std::vector<int64_t>& prompts = {}) {
    IndexedDatasetWriter writer(folder / "set", kNumberedVocabulary);
    for (size_t document = 0; document < lengths.size(); ++document) {
      const int64_t prompt = prompts.empty() ? 0 : prompts.at(document);
      std::vector<int32_t> tokens;
      tokens.reserve(static_cast<size_t>(lengths[document]));
      for (int64_t i = 0; i < lengths[document]; ++i) {
        tokens.push_back(static_cast<int32_t>(document_of.size()));
        document_of.push_back(static_cast<int64_t>(document));
        is_prompt.push_back(i < prompt);
      }
      writer.add_document(tokens, prompt);
    }
    writer.finish();
    set = std::make_shared<const IndexedDataset>(folder / "set");
  }

  int64_t tokens() const { return static_cast<int64_t>(document_of.size()); }
  bool same_document(int64_t a, int64_t b) const {
    return document_of.at(static_cast<size_t>(a)) == document_of.at(static_cast<size_t>(b));
  }

  TemporaryFolder folder;
  std::vector<int64_t> document_of;  // of each token
  std::vector<bool> is_prompt;       // each token
  std::shared_ptr<const IndexedDataset> set;
};

}  // namespace trireme::testing
