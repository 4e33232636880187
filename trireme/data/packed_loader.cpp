#include "trireme/data/packed_loader.h"

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/sample_order.h"

namespace trireme {

PackedLoader::PackedLoader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range,
                           const LoaderOptions& options)
    : reader_(std::move(dataset), range, options) {}

int64_t PackedLoader::rows_per_step() const {
  const LoaderOptions& options = reader_.options();
  return options.batch_size * options.accumulation_steps * options.dp_size;
}

double PackedLoader::epochs_done() const {
  return static_cast<double>(epoch_) + static_cast<double>(row_) / static_cast<double>(rows());
}

StepBatches PackedLoader::next() {
  const LoaderOptions& options = reader_.options();
  StepBatches step;
  step.reserve(static_cast<size_t>(options.accumulation_steps));
  std::vector<RowOfEpoch> rank_rows;
  rank_rows.reserve(static_cast<size_t>(options.batch_size));
  for (int64_t micro = 0; micro < options.accumulation_steps; ++micro) {
    for (int dp = 0; dp < options.dp_size; ++dp) {
      for (int64_t b = 0; b < options.batch_size; ++b) {
        if (dp == options.dp_index)
          rank_rows.push_back(
              {options.shuffle ? SampleOrder(rows(), options.seed, epoch_)[row_] : row_, epoch_});
        if (++row_ == rows()) {
          row_ = 0;
          ++epoch_;
        }
      }
    }
    step.push_back(reader_.read(rank_rows));
    rank_rows.clear();
  }
  return step;
}

Json PackedLoader::state() const {
  const LoaderOptions& options = reader_.options();
  return {{"epoch", epoch_},
          {"row", row_},
          {"set_tokens", reader_.dataset().tokens()},
          {"range_begin", reader_.range().begin},
          {"range_end", reader_.range().end},
          {"packing", name_of(options.packing.kind)},
          {"long_documents", name_of(options.packing.long_documents)},
          {"sequence_tokens", options.sequence_tokens},
          {"seed", options.seed},
          {"shuffle", options.shuffle}};
}

void PackedLoader::restore(const Json& state) {
  const std::string origin = "the saved state of the data loader";
  const int64_t epoch = whole_number(state, "epoch", {0, kLargestExactWhole}, origin);
  const int64_t row = whole_number(state, "row", {}, origin);
  const Json expected = this->state();
  for (const auto& [key, value] : expected.items()) {
    if (!state.contains(key)) throw DataError(cat(origin, " has no \"", key, "\""));
    if (key != "epoch" && key != "row" && state[key] != value)
      throw DataError(cat(origin, " has ", key, " ", quotation(state[key]), ", this run has ",
                          quotation(value), ": resume with the same data and options, or start a new run"));
  }
  if (row >= rows()) throw DataError(cat(origin, " is at row ", row, " of ", rows()));
  epoch_ = epoch;
  row_ = row;
}

}  // namespace trireme
