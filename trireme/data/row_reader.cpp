#include "trireme/data/row_reader.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

namespace {

const LoaderOptions& checked(const LoaderOptions& options, const IndexedDataset& dataset) {
  check_a_token_for_each_rank(options.layout());
  if (options.masked_tokens && !dataset.prompts().empty())
    throw ConfigError(cat(dataset.name(),
                          ": has prompts, which a model of masked tokens (BERT) does not know: make the set "
                          "of plain text, or train a model that predicts the next token"));
  return options;
}

}  // namespace

RowReader::RowReader(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range,
                     const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      range_(range),
      options_(checked(options, *dataset_)),
      spans_(options_.layout().spans(options_.sp_rank)),
      packed_(dataset_, range_, options_.packing, options_.sequence_tokens, !options_.masked_tokens) {}

TokenBatch RowReader::read(const std::vector<RowOfEpoch>& rows) const {
  TokenBatch batch;
  batch.layout = options_.layout();
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t slice = size_of(spans_);
  batch.tokens = at::empty({count, slice}, at::kLong);
  batch.targets = at::empty({count, slice}, at::kLong);
  auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (const RowOfEpoch& of_epoch : rows) {
    PackedRow row = packed_.row(of_epoch.row);
    read_row(*dataset_, row, spans_, options_.vocab_size, options_.pad_token_id, tokens, targets);
    if (options_.masked_tokens) mask(row, of_epoch.epoch, tokens, targets);
    if (row.documents) batch.documents.push_back(std::move(*row.documents));
    tokens += slice;
    targets += slice;
  }
  return batch;
}

void RowReader::mask(const PackedRow& row, int64_t epoch, int64_t* tokens, int64_t* targets) const {
  const MaskedTokenOptions& masked = *options_.masked_tokens;
  // Positions in the stream decide, so that every split over ranks masks the same tokens; never padding.
  int64_t also = -1;
  for (const TokenSpan& piece : row.pieces) {
    also = choice_of_none(masked, epoch, piece.begin, piece.size());
    if (also < 0) break;  // this piece has a chosen token
  }
  for (const TokenSpan& span : spans_) {
    for_stretches(row, span, [&](TokenSpan held, int64_t offset, bool) {
      mask_tokens(masked, epoch, held.begin, held.size(), tokens + offset, targets + offset, also);
    });
    tokens += span.size();
    targets += span.size();
  }
}

}  // namespace trireme
