// Reads every row of a range once, in order. Data-parallel ranks take turns, batch_size rows each; the last
// batch may be smaller. All data-parallel ranks get the same number of batches: a rank without rows left gets
// a batch whose targets are all kIgnoredLabel. Every evaluation masks the tokens of epoch 0. Nothing here is
// collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/data/row_reader.h"

namespace trireme {

class EvaluationLoader {
 public:
  // Uses all of LoaderOptions but accumulation_steps, seed and shuffle. Throws what RowReader throws.
  EvaluationLoader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range,
                   const LoaderOptions& options);

  std::optional<TokenBatch> next();
  int64_t rows() const { return rows_; }
  int64_t batches() const;  // calls of next() that give a batch, the same on every rank
  // Reads at most this many rows, 1 or more.
  void limit_rows(int64_t rows);

 private:
  RowReader reader_;
  int64_t rows_ = 0;
  int64_t round_ = 0;
};

}  // namespace trireme
