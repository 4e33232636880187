// Every row of a range once, in order, dealt to data-parallel ranks in runs of batch_size; the last batch may
// be smaller. Every data-parallel rank gets the same number of batches: one that has no row left gets a batch
// whose targets are all kIgnoredLabel. Masked tokens are those of epoch 0 each time. Nothing here is
// collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/data/row_reader.h"

namespace trireme {

class EvaluationWalk {
 public:
  // Uses of LoaderOptions: all but accumulation_steps, seed and shuffle. Throws what RowReader throws.
  EvaluationWalk(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range,
                 const LoaderOptions& options);

  std::optional<TokenBatch> next();
  int64_t rows() const { return rows_; }
  int64_t batches() const;  // calls of next() that give a batch, the same on every rank
  // At most this many rows are walked. Throws ConfigError unless positive.
  void limit_rows(int64_t rows);

 private:
  RowReader reader_;
  int64_t rows_ = 0;
  int64_t round_ = 0;
};

}  // namespace trireme
