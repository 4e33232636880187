#include "trireme/data/packing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/token_batch.h"

namespace trireme {

int64_t longest_context_tokens(const IndexedDataset& dataset, Packing packing) {
  return packing == Packing::concat ? std::numeric_limits<int64_t>::max() : dataset.longest_document();
}

int64_t mean_context_tokens(const IndexedDataset& dataset, Packing packing, int64_t sequence_tokens) {
  if (packing == Packing::concat) return sequence_tokens;
  return std::llround(dataset.mean_piece_of_token(sequence_tokens));
}

PackedRows::PackedRows(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, Packing packing,
                       int64_t sequence_tokens, bool next_token_targets)
    : dataset_(std::move(dataset)), range_(range), packing_(packing), sequence_tokens_(sequence_tokens) {
  TRIREME_ASSERT(range.begin >= 0 && range.begin <= range.end && range.end <= dataset_->tokens(), "range [",
                 range.begin, ", ", range.end, ") of ", dataset_->tokens(), " tokens");
  TRIREME_ASSERT(sequence_tokens > 0, "rows of ", sequence_tokens, " tokens");
  if (packing == Packing::none)
    count_pieces(next_token_targets);
  else
    count_windows();
}

std::string PackedRows::range_text() const {
  if (range_.size() == dataset_->tokens()) return "there are";
  return range_.begin > 0 ? "the part held out of training has" : "what is held out leaves training";
}

void PackedRows::count_windows() {
  if (range_.size() <= sequence_tokens_)
    throw DataError(cat(dataset_->path().string(), ": ", range_text(), " ", format_count(range_.size()),
                        " tokens, but one window of ", format_count(sequence_tokens_), " needs ",
                        format_count(sequence_tokens_ + 1),
                        " (one more for the last target): give more data, a shorter sequence length, or "
                        "--packing none, which pads"));
  count_ = (range_.size() - 1) / sequence_tokens_;
}

void PackedRows::count_pieces(bool next_token_targets) {
  int64_t documents = 0;
  if (range_.size() > 0) {
    first_document_ = dataset_->document_of(range_.begin);
    documents = dataset_->document_of(range_.end - 1) + 1 - first_document_;
  }
  rows_before_.reserve(static_cast<size_t>(documents) + 1);
  rows_before_.push_back(0);
  constexpr int64_t kAtOnce = 8192;
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < documents; ++i) {
    if (i % kAtOnce == 0)
      begins = dataset_->document_begins(first_document_ + i, std::min(kAtOnce, documents - i) + 1);
    const auto slot = static_cast<size_t>(i % kAtOnce);
    const int64_t tokens = std::min(range_.end, begins[slot + 1]) - std::max(range_.begin, begins[slot]);
    const int64_t full = tokens / sequence_tokens_, rest = tokens % sequence_tokens_;
    int64_t rows = full + (rest > 0 ? 1 : 0);
    const int64_t last = rest > 0 ? rest : sequence_tokens_;
    if (next_token_targets && rows > 0 && last == 1) --rows;
    rows_before_.push_back(rows_before_.back() + rows);
  }
  count_ = rows_before_.back();
  if (count_ == 0)
    throw DataError(cat(dataset_->path().string(), ": ", range_text(), " ", format_count(documents),
                        " documents, none of which has two tokens and so a target"));
}

PackedRow PackedRows::row(int64_t index) const {
  TRIREME_ASSERT(index >= 0 && index < count_, "row ", index, " of ", count_);
  return packing_ == Packing::none ? piece(index) : window(index);
}

PackedRow PackedRows::window(int64_t index) const {
  const int64_t begin = range_.begin + index * sequence_tokens_, end = begin + sequence_tokens_;
  PackedRow row{{begin, end}, true, std::nullopt};
  if (packing_ == Packing::concat) return row;
  std::vector<int64_t> borders{0};
  const auto add_border = [&](int64_t border) {  // a document's begin, or the end of the last document
    if (border >= end) {
      row.goes_on = border > end;
      return false;
    }
    if (border - begin > borders.back()) borders.push_back(border - begin);  // some documents are empty
    return true;
  };
  const int64_t documents = dataset_->documents();
  constexpr int64_t kAtOnce = 256;
  for (int64_t document = dataset_->document_of(begin) + 1; document <= documents; document += kAtOnce) {
    const auto begins = dataset_->document_begins(document, std::min(kAtOnce, documents + 1 - document));
    if (!std::ranges::all_of(begins, add_border)) break;
  }
  borders.push_back(sequence_tokens_);
  row.documents.emplace(std::move(borders));
  return row;
}

PackedRow PackedRows::piece(int64_t index) const {
  const auto after = std::ranges::upper_bound(rows_before_, index);
  const int64_t holder = after - rows_before_.begin() - 1;
  const std::vector<int64_t> ends = dataset_->document_begins(first_document_ + holder, 2);
  const TokenSpan document{std::max(range_.begin, ends[0]), std::min(range_.end, ends[1])};
  const int64_t begin =
      document.begin + (index - rows_before_[static_cast<size_t>(holder)]) * sequence_tokens_;
  const int64_t end = std::min(begin + sequence_tokens_, document.end);
  std::vector<int64_t> borders{0};
  borders.reserve(static_cast<size_t>(sequence_tokens_ - (end - begin)) + 2);
  for (int64_t border = end - begin; border <= sequence_tokens_; ++border) borders.push_back(border);
  return {{begin, end}, end < document.end, Documents(std::move(borders))};
}

void read_row(const IndexedDataset& dataset, const PackedRow& row, const TokenSpans& spans,
              int64_t vocab_size, int64_t pad, int64_t* tokens, int64_t* targets) {
  const int64_t held = row.stream.size();
  const int64_t with_next = row.goes_on ? held : held - 1;  // positions whose next token is a target
  for (const TokenSpan& span : spans) {
    const int64_t begin = row.stream.begin + span.begin;
    const auto read = [&](int64_t count_of_row, int64_t first, int64_t filling, int64_t* out) {
      const int64_t count = std::clamp<int64_t>(count_of_row - span.begin, 0, span.size());
      if (count > 0) dataset.read(first, count, out, vocab_size);
      std::fill(out + count, out + span.size(), filling);
    };
    read(held, begin, pad, tokens);
    // The last target may be another rank's first token. It is in the stream, so the shift needs no exchange.
    read(with_next, begin + 1, kIgnoredLabel, targets);
    if (row.documents) {
      const std::vector<int64_t>& borders = row.documents->cu_seqlens();
      // Only borders between two documents of the row count, not its ends.
      const auto last = borders.end() - 1;
      for (auto border = std::upper_bound(borders.begin() + 1, last, span.begin);
           border < last && *border <= span.end; ++border)
        targets[*border - 1 - span.begin] = kIgnoredLabel;
    }
    tokens += span.size();
    targets += span.size();
  }
}

}  // namespace trireme
