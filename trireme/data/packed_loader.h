// Deals the rows of a token set (packing.h) to ranks as training steps.
//
//   one step = accumulation_steps micro-batches of batch_size rows on each of dp_size ranks; a rank of the
//   sequence group reads only its slice of these rows (row_reader.h): tokens [B, s], targets [B, s]
//
// Each epoch permutes the rows by a key of (seed, epoch), the same for every number of sequence ranks. So the
// state is two numbers. Rows run on from one epoch into the next, so every row comes once an epoch at any
// step size. Nothing here is collective.
#pragma once

#include <cstdint>
#include <memory>

#include "trireme/base/json.h"
#include "trireme/data/row_reader.h"

namespace trireme {

class PackedLoader {
 public:
  // Throws what RowReader throws.
  PackedLoader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, const LoaderOptions& options);

  // This rank's slices of the next step: accumulation_steps batches of [B, s]. Never ends.
  StepBatches next();

  int64_t rows() const { return reader_.rows(); }  // of one epoch
  int64_t rows_per_step() const;                   // over all data-parallel ranks
  double epochs_done() const;

  // {"epoch", "row"} and the values that the order depends on. `restore` throws DataError when those differ:
  // another set, packing, sequence length, seed or shuffling. Batch size, accumulation and numbers of ranks
  // may change.
  Json state() const;
  void restore(const Json& state);

 private:
  RowReader reader_;
  int64_t epoch_ = 0;
  int64_t row_ = 0;  // rows of this epoch handed out so far, by all ranks
};

}  // namespace trireme
