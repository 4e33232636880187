#include "trireme/data/concat_loader.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/sample_order.h"

namespace trireme {

namespace {

void check_options(const LoaderOptions& o) {
  const auto positive = [](int64_t value, const char* what) {
    if (value < 1) throw ConfigError(cat(what, " is ", value, "; expected 1 or more"));
  };
  positive(o.sequence_tokens, "the sequence length");
  positive(o.batch_size, "the batch size");
  positive(o.accumulation_steps, "the number of accumulation steps");
  positive(o.dp_size, "the number of data-parallel ranks");
  positive(o.sp_size, "the number of sequence-parallel ranks");
  if (o.dp_index < 0 || o.dp_index >= o.dp_size)
    throw ConfigError(cat("data-parallel index ", o.dp_index, " of ", o.dp_size, " ranks"));
  if (o.sp_rank < 0 || o.sp_rank >= o.sp_size)
    throw ConfigError(cat("sequence-parallel rank ", o.sp_rank, " of ", o.sp_size, " ranks"));
}

int64_t count_windows(const IndexedDataset& dataset, const TokenRange& range, int64_t sequence_tokens) {
  TRIREME_ASSERT(range.begin >= 0 && range.begin <= range.end && range.end <= dataset.tokens(), "range [",
                 range.begin, ", ", range.end, ") of ", dataset.tokens(), " tokens");
  if (range.size() <= sequence_tokens)
    throw DataError(cat(dataset.path().string(), ": there are ", format_count(range.size()),
                        " tokens, but one window of ", format_count(sequence_tokens), " needs ",
                        format_count(sequence_tokens + 1),
                        " (one more for the last target): give more data or a shorter sequence length"));
  return (range.size() - 1) / sequence_tokens;
}

// This rank's slices of some windows: tokens and targets [windows.size(), s].
TokenBatch read_windows(const IndexedDataset& dataset, const TokenRange& range, const LoaderOptions& o,
                        const std::vector<int64_t>& windows) {
  TokenBatch batch;
  batch.layout = SequenceLayout{o.sequence_tokens, o.sp_size};
  const auto rows = static_cast<int64_t>(windows.size());
  const int64_t first = batch.layout.begin(o.sp_rank), slice = batch.layout.size(o.sp_rank);
  batch.tokens = at::empty({rows, slice}, at::kLong);
  batch.targets = at::empty({rows, slice}, at::kLong);
  if (slice == 0) return batch;
  auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t window : windows) {
    const int64_t begin = range.begin + window * o.sequence_tokens + first;
    // The slice's last target is the next rank's first token, so the shift needs no exchange.
    dataset.read(begin, slice, tokens, o.vocab_size);
    dataset.read(begin + 1, slice, targets, o.vocab_size);
    tokens += slice;
    targets += slice;
  }
  return batch;
}

}  // namespace

TokenRange whole_set(const IndexedDataset& dataset) {
  return {0, dataset.tokens()};
}

HeldOutSplit split_held_out(const IndexedDataset& dataset, double fraction) {
  if (!(fraction > 0 && fraction < 1))
    throw ConfigError(cat("the held-out fraction is ", fraction, "; expected a number between 0 and 1"));
  const int64_t all = dataset.tokens();
  const auto wanted = std::clamp<int64_t>(all - std::llround(static_cast<double>(all) * fraction), 1,
                                          std::max<int64_t>(1, all - 1));
  const int64_t document = dataset.document_of(wanted);
  const int64_t before = dataset.document_begin(document), after = dataset.document_begin(document + 1);
  int64_t cut = wanted;  // inside the set's only document
  if (before > 0 && (after == all || wanted - before <= after - wanted))
    cut = before;
  else if (after < all)
    cut = after;
  return {{0, cut}, {cut, all}};
}

ConcatLoader::ConcatLoader(std::shared_ptr<const IndexedDataset> dataset, TokenRange range,
                           const LoaderOptions& options)
    : dataset_(std::move(dataset)), range_(range), options_(options) {
  check_options(options_);
  windows_ = count_windows(*dataset_, range_, options_.sequence_tokens);
}

int64_t ConcatLoader::windows_per_step() const {
  return options_.batch_size * options_.accumulation_steps * options_.dp_size;
}

int64_t ConcatLoader::steps_per_epoch() const {
  return (windows_ + windows_per_step() - 1) / windows_per_step();
}

double ConcatLoader::epochs_done() const {
  return static_cast<double>(epoch_) + static_cast<double>(window_) / static_cast<double>(windows_);
}

StepBatches ConcatLoader::next() {
  StepBatches step;
  std::vector<int64_t> mine;
  for (int64_t micro = 0; micro < options_.accumulation_steps; ++micro) {
    for (int dp = 0; dp < options_.dp_size; ++dp) {
      for (int64_t row = 0; row < options_.batch_size; ++row) {
        if (dp == options_.dp_index)
          mine.push_back(options_.shuffle ? SampleOrder(windows_, options_.seed, epoch_)[window_] : window_);
        if (++window_ == windows_) {
          window_ = 0;
          ++epoch_;
        }
      }
    }
    step.push_back(read_windows(*dataset_, range_, options_, mine));
    mine.clear();
  }
  return step;
}

Json ConcatLoader::state() const {
  return {{"epoch", epoch_},
          {"window", window_},
          {"set_tokens", dataset_->tokens()},
          {"range_begin", range_.begin},
          {"range_end", range_.end},
          {"sequence_tokens", options_.sequence_tokens},
          {"seed", options_.seed},
          {"shuffle", options_.shuffle}};
}

void ConcatLoader::restore(const Json& state) {
  const Json own = this->state();
  for (const auto& [key, value] : own.items()) {
    if (!state.is_object() || !state.contains(key))
      throw DataError(cat("the saved state of the data loader has no \"", key, "\""));
    if (key == "epoch" || key == "window") {
      if (!state[key].is_number_integer() || state[key].get<int64_t>() < 0)
        throw DataError(cat("the saved state of the data loader has ", key, " ", state[key].dump()));
    } else if (state[key] != value) {
      throw DataError(cat("the saved state of the data loader has ", key, " ", state[key].dump(),
                          ", this run has ", value.dump(),
                          ": resume with the same data and options, or start a new run"));
    }
  }
  if (state["window"].get<int64_t>() >= windows_)
    throw DataError(
        cat("the saved state of the data loader is at window ", state["window"].dump(), " of ", windows_));
  epoch_ = state["epoch"].get<int64_t>();
  window_ = state["window"].get<int64_t>();
}

EvaluationWalk::EvaluationWalk(std::shared_ptr<const IndexedDataset> dataset, TokenRange range,
                               const LoaderOptions& options)
    : dataset_(std::move(dataset)), range_(range), options_(options) {
  check_options(options_);
  windows_ = count_windows(*dataset_, range_, options_.sequence_tokens);
}

void EvaluationWalk::limit_windows(int64_t windows) {
  if (windows < 1)
    throw ConfigError(cat("evaluation is limited to ", windows, " windows; expected 1 or more"));
  windows_ = std::min(windows_, windows);
}

int64_t EvaluationWalk::batches() const {
  const int64_t round = options_.batch_size * options_.dp_size;
  return (windows_ + round - 1) / round;
}

std::optional<TokenBatch> EvaluationWalk::next() {
  if (round_ >= batches()) return std::nullopt;
  const int64_t begin = (round_++ * options_.dp_size + options_.dp_index) * options_.batch_size;
  std::vector<int64_t> mine;
  for (int64_t w = begin; w < std::min(begin + options_.batch_size, windows_); ++w) mine.push_back(w);
  const bool none_left = mine.empty();
  if (none_left) mine.push_back(windows_ - 1);
  TokenBatch batch = read_windows(*dataset_, range_, options_, mine);
  if (none_left) batch.targets.fill_(kIgnoredLabel);
  return batch;
}

}  // namespace trireme
