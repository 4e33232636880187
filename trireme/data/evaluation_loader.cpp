#include "trireme/data/evaluation_loader.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme {

EvaluationLoader::EvaluationLoader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range,
                                   const LoaderOptions& options)
    : reader_(std::move(dataset), range, options), rows_(reader_.rows()) {}

void EvaluationLoader::limit_rows(int64_t rows) {
  rows_ = std::min(rows_, rows);
}

int64_t EvaluationLoader::batches() const {
  const int64_t round = reader_.options().batch_size * reader_.options().dp_size;
  return (rows_ + round - 1) / round;
}

std::optional<TokenBatch> EvaluationLoader::next() {
  if (round_ >= batches()) return std::nullopt;
  const LoaderOptions& options = reader_.options();
  const int64_t begin = (round_++ * options.dp_size + options.dp_index) * options.batch_size;
  const int64_t end = std::min(begin + options.batch_size, rows_);
  std::vector<RowOfEpoch> rank_rows;
  rank_rows.reserve(static_cast<size_t>(options.batch_size));
  for (int64_t row = begin; row < end; ++row) rank_rows.push_back({row, 0});
  const bool none_left = rank_rows.empty();
  if (none_left) rank_rows.push_back({rows_ - 1, 0});
  TokenBatch batch = reader_.read(rank_rows);
  if (none_left) batch.targets.fill_(kIgnoredLabel);
  return batch;
}

}  // namespace trireme
