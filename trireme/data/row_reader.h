// Reads this rank's slices of some rows (packing.h) as one micro-batch:
//
//   rows of S tokens -> tokens [rows, s], targets [rows, s] at this rank's positions, and the documents of
//   the whole rows, which every rank needs for its masks
//
// Targets are the next tokens, already shifted, or the masked tokens (masked_tokens.h). The slices of all
// sequence ranks make the same rows for any number of ranks. Nothing here is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/base/sample_layout.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/masked_tokens.h"
#include "trireme/data/packing.h"
#include "trireme/data/token_batch.h"

namespace trireme {

struct LoaderOptions {
  PackingRule packing;
  int64_t sequence_tokens = 0;     // S
  int64_t batch_size = 1;          // B, rows in one micro-batch of one data-parallel rank
  int64_t accumulation_steps = 1;  // micro-batches in one step
  int dp_size = 1;
  int dp_index = 0;
  int ulysses = 1;
  int ring = 1;
  int sp_rank = 0;  // of the ulysses x ring ranks that share a row
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t vocab_size = 0;    // of the model; a token id outside it is a DataError; 0: unchecked
  int64_t pad_token_id = 0;  // what fills rows of Packing::none and best_fit
  std::optional<MaskedTokenOptions> masked_tokens;  // none: targets are the next tokens

  SampleLayout layout() const { return {sequence_tokens, ulysses, ring}; }
};

// A row in an epoch: each epoch masks other tokens.
struct RowOfEpoch {
  int64_t row = 0;
  int64_t epoch = 0;
};

class RowReader {
 public:
  // The rows of `range` of the set's stream. Throws ConfigError for a row shorter than the ranks that share
  // it, and for masked tokens of a set with prompts; DataError when the range has no row.
  RowReader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, const LoaderOptions& options);

  int64_t rows() const { return packed_.count(); }
  const IndexedDataset& dataset() const { return *dataset_; }
  TokenSpan range() const { return range_; }
  const LoaderOptions& options() const { return options_; }

  TokenBatch read(const std::vector<RowOfEpoch>& rows) const;

 private:
  void mask(const PackedRow& row, int64_t epoch, int64_t* tokens, int64_t* targets) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  TokenSpan range_;
  LoaderOptions options_;
  TokenSpans spans_;  // this rank's positions of a row
  PackedRows packed_;
};

}  // namespace trireme
