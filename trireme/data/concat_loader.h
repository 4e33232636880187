// Concat packing: documents joined by the end-of-text token (attention crosses them on purpose), cut into
// windows.
//
//   N tokens of the stream -> W = (N - 1) / S windows; window w is tokens [wS, wS + S), its targets [wS + 1,
//   wS + S + 1) one step = accumulation_steps micro-batches of batch_size windows on each of dp_size ranks a
//   rank of the sequence group reads just its slice: tokens [B, s], targets [B, s], already shifted
//
// The order of windows is a permutation of each epoch keyed by (seed, epoch): the same for every number of
// sequence ranks, and the state is two numbers. The stream of windows runs on from one epoch into the next,
// so every window comes once an epoch whatever the step's size. The last (N - 1) % S tokens are in no window.
// Nothing here is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/token_batch.h"

namespace trireme {

// A stretch [begin, end) of a set's token stream, in tokens.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

struct HeldOutSplit {
  TokenRange train;
  TokenRange held_out;
};

TokenRange whole_set(const IndexedDataset& dataset);
// The last `fraction` of the tokens, cut at the nearest document border that leaves something on both sides;
// a single document is cut in itself. Throws ConfigError unless 0 < fraction < 1.
HeldOutSplit split_held_out(const IndexedDataset& dataset, double fraction);

struct LoaderOptions {
  int64_t sequence_tokens = 0;     // S
  int64_t batch_size = 1;          // B, windows in one micro-batch of one data-parallel rank
  int64_t accumulation_steps = 1;  // micro-batches in one step
  int dp_size = 1;
  int dp_index = 0;
  int sp_size = 1;
  int sp_rank = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t vocab_size = 0;  // of the model; a token id outside it is a DataError; 0: unchecked
};

class ConcatLoader {
 public:
  // Throws ConfigError for options that contradict themselves, DataError when the range is shorter than one
  // window.
  ConcatLoader(std::shared_ptr<const IndexedDataset> dataset, TokenRange range, const LoaderOptions& options);

  // This rank's slices of the next step: accumulation_steps batches of [B, s]. Never ends.
  StepBatches next();

  int64_t windows() const { return windows_; }  // of one epoch
  int64_t windows_per_step() const;             // over all data-parallel ranks
  // Whole steps that pass over every window at least once (the last may begin the next epoch).
  int64_t steps_per_epoch() const;
  double epochs_done() const;

  // {"epoch", "window", and what the order depends on}. `restore` throws DataError when that differs: another
  // set, sequence length, seed or shuffling. The batch size, accumulation and numbers of ranks may change.
  Json state() const;
  void restore(const Json& state);

 private:
  std::shared_ptr<const IndexedDataset> dataset_;
  TokenRange range_;
  LoaderOptions options_;
  int64_t windows_ = 0;
  int64_t epoch_ = 0;
  int64_t window_ = 0;  // windows of this epoch handed out so far, by all ranks
};

// Every window of a range once, in order, dealt to data-parallel ranks in runs of batch_size; the last batch
// may be smaller. Every data-parallel rank gets the same number of batches: one that has no window left gets
// a batch whose targets are all kIgnoredLabel. Uses of LoaderOptions: all but accumulation_steps, seed and
// shuffle.
class EvaluationWalk {
 public:
  EvaluationWalk(std::shared_ptr<const IndexedDataset> dataset, TokenRange range,
                 const LoaderOptions& options);

  std::optional<TokenBatch> next();
  int64_t windows() const { return windows_; }
  int64_t batches() const;  // calls of next() that give a batch, the same on every rank
  // At most this many windows are walked. Throws ConfigError unless positive.
  void limit_windows(int64_t windows);

 private:
  std::shared_ptr<const IndexedDataset> dataset_;
  TokenRange range_;
  LoaderOptions options_;
  int64_t windows_ = 0;
  int64_t round_ = 0;
};

}  // namespace trireme
