#include "trireme/data/packing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/best_fit.h"
#include "trireme/data/token_batch.h"

namespace trireme {

int64_t longest_context_tokens(const IndexedDataset& dataset, PackingRule rule, int64_t sequence_tokens) {
  if (rule.kind == Packing::concat) return std::numeric_limits<int64_t>::max();
  if (rule.long_documents != LongDocuments::skip) return dataset.longest_document();
  int64_t longest = 0;
  dataset.for_documents({0, dataset.tokens()}, [&](TokenSpan document) {
    if (document.size() <= sequence_tokens) longest = std::max(longest, document.size());
  });
  return longest;
}

namespace {

// Of a document: the pieces of a row's length, and the tokens that follow them.
struct Pieces {
  int64_t whole, rest_tokens;
};

Pieces pieces_of(int64_t document_tokens, LongDocuments rule, int64_t sequence_tokens) {
  if (document_tokens <= sequence_tokens || rule == LongDocuments::cut)
    return {document_tokens / sequence_tokens, document_tokens % sequence_tokens};
  return {rule == LongDocuments::truncate ? 1 : 0, 0};
}

}  // namespace

int64_t mean_context_tokens(const IndexedDataset& dataset, PackingRule rule, int64_t sequence_tokens) {
  if (rule.kind == Packing::concat) return sequence_tokens;
  double tokens = 0, squares = 0;
  const auto add = [&](int64_t piece_tokens, int64_t pieces) {
    tokens += static_cast<double>(pieces * piece_tokens);
    squares +=
        static_cast<double>(pieces) * static_cast<double>(piece_tokens) * static_cast<double>(piece_tokens);
  };
  dataset.for_documents({0, dataset.tokens()}, [&](TokenSpan document) {
    const Pieces pieces = pieces_of(document.size(), rule.long_documents, sequence_tokens);
    add(sequence_tokens, pieces.whole);
    add(pieces.rest_tokens, 1);
  });
  return tokens == 0 ? 0 : std::llround(squares / tokens);
}

LongDocumentsCount count_long_documents(const IndexedDataset& dataset, TokenSpan range,
                                        int64_t sequence_tokens) {
  LongDocumentsCount count;
  dataset.for_documents(range, [&](TokenSpan document) {
    if (document.size() == 0) return;
    ++count.documents;
    count.longest_tokens = std::max(count.longest_tokens, document.size());
    if (document.size() <= sequence_tokens) return;
    ++count.longer;
    count.longer_tokens += document.size();
  });
  return count;
}

PackedRows::PackedRows(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, PackingRule rule,
                       int64_t sequence_tokens, bool next_token_targets)
    : dataset_(std::move(dataset)), range_(range), rule_(rule), sequence_tokens_(sequence_tokens) {
  TRIREME_ASSERT(range.begin >= 0 && range.begin <= range.end && range.end <= dataset_->tokens(), "range [",
                 range.begin, ", ", range.end, ") of ", dataset_->tokens(), " tokens");
  TRIREME_ASSERT(sequence_tokens > 0, "rows of ", sequence_tokens, " tokens");
  if (rule.whole_documents())
    find_pieces(next_token_targets);
  else
    find_windows();
}

std::string PackedRows::range_text() const {
  if (range_.size() == dataset_->tokens()) return "there are";
  return range_.begin > 0 ? "the part held out of training has" : "what is held out leaves training";
}

void PackedRows::find_windows() {
  if (range_.size() <= sequence_tokens_)
    throw DataError(cat(dataset_->name(), ": ", range_text(), " ", format_count(range_.size()),
                        " tokens, but one window of ", format_count(sequence_tokens_), " needs ",
                        format_count(sequence_tokens_ + 1),
                        " (one more for the last target): give more data, a shorter sequence length, or "
                        "--packing none or best_fit, which pad"));
  count_ = (range_.size() - 1) / sequence_tokens_;
  if (!dataset_->prompts().empty()) leave_out_windows_of_prompts();
}

void PackedRows::leave_out_windows_of_prompts() {
  std::vector<bool> has_target(static_cast<size_t>(count_));
  // A target belongs to the window of the token before it.
  const auto window_before = [&](int64_t target) { return (target - 1 - range_.begin) / sequence_tokens_; };
  const auto mark = [&](TokenSpan document) {
    dataset_->prompts().for_predicted({document.begin + 1, document.end}, [&](TokenSpan targets) {
      const int64_t last = std::min(window_before(targets.end - 1), count_ - 1);
      for (int64_t i = window_before(targets.begin); i <= last; ++i)
        has_target[static_cast<size_t>(i)] = true;
    });
  };
  if (rule_.kind == Packing::concat)
    mark(range_);
  else
    dataset_->for_documents(range_, mark);
  windows_.emplace();
  for (int64_t i = 0; i < count_; ++i)
    if (has_target[static_cast<size_t>(i)]) windows_->push_back(i);
  if (windows_->empty())
    throw DataError(
        cat(dataset_->name(), ": ", range_text(), " ", format_count(count_),
            " windows, none of which has a token to predict: all are prompts; --packing best_fit and "
            "none also take what lies behind the last window"));
  count_ = std::ssize(*windows_);
}

void PackedRows::find_pieces(bool next_token_targets) {
  int64_t documents = 0;
  dataset_->for_documents(range_, [&](TokenSpan document) {
    ++documents;
    add_pieces(document, next_token_targets);
  });
  if (pieces_.empty())
    throw DataError(cat(dataset_->name(), ": ", range_text(), " ", format_count(documents),
                        " documents, none of which has two tokens and so a target",
                        dataset_->prompts().empty() ? "" : " outside its prompts",
                        rule_.long_documents == LongDocuments::cut
                            ? ""
                            : cat(" in a row of ", format_count(sequence_tokens_),
                                  " tokens with --long_documents ", name_of(rule_.long_documents),
                                  ": give longer rows (--max_seq_length), or --long_documents cut")));
  count_ = std::ssize(pieces_);
  if (rule_.kind == Packing::best_fit) pack_best_fit();
}

void PackedRows::add_pieces(TokenSpan document, bool next_token_targets) {
  const Pieces pieces = pieces_of(document.size(), rule_.long_documents, sequence_tokens_);
  const int64_t kept_end = document.begin + pieces.whole * sequence_tokens_ + pieces.rest_tokens;
  for (int64_t begin = document.begin; begin < kept_end; begin += sequence_tokens_) {
    const TokenSpan piece{begin, std::min(begin + sequence_tokens_, kept_end)};
    const TokenSpan targets =
        next_token_targets ? TokenSpan{piece.begin + 1, std::min(piece.end + 1, document.end)} : piece;
    if (dataset_->prompts().tokens_in(targets) < targets.size()) pieces_.push_back(piece);
  }
}

void PackedRows::pack_best_fit() {
  std::vector<int64_t> lengths(pieces_.size());
  std::ranges::transform(pieces_, lengths.begin(), &TokenSpan::size);
  const BestFit packed = best_fit(lengths, sequence_tokens_);
  std::vector<TokenSpan> pieces(pieces_.size());
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces_[static_cast<size_t>(packed.items[i])];
  pieces_ = std::move(pieces);
  first_pieces_ = packed.first_items;
  count_ = std::ssize(first_pieces_) - 1;
}

PackedRow PackedRows::row(int64_t index) const {
  TRIREME_ASSERT(index >= 0 && index < count_, "row ", index, " of ", count_);
  if (!pieces_.empty()) return row_of_pieces(index);
  return window(windows_ ? windows_->at(static_cast<size_t>(index)) : index);
}

PackedRow PackedRows::window(int64_t index) const {
  const int64_t begin = range_.begin + index * sequence_tokens_, end = begin + sequence_tokens_;
  PackedRow row{{{begin, end}}, true, std::nullopt};
  if (rule_.kind == Packing::concat) return row;
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

PackedRow PackedRows::row_of_pieces(int64_t index) const {
  PackedRow row;
  const int64_t first = first_pieces_.empty() ? index : first_pieces_[static_cast<size_t>(index)],
                last = first_pieces_.empty() ? index + 1 : first_pieces_[static_cast<size_t>(index) + 1];
  row.pieces.assign(pieces_.begin() + first, pieces_.begin() + last);
  std::vector<int64_t> borders{0};
  for (const TokenSpan& piece : row.pieces) borders.push_back(borders.back() + piece.size());
  for (int64_t border = borders.back() + 1; border <= sequence_tokens_; ++border) borders.push_back(border);
  row.documents.emplace(std::move(borders));
  // Only a piece that fills its row may go on, if the range does: others need no look at the index.
  const int64_t end = row.pieces.back().end;
  row.goes_on = row.pieces.back().size() == sequence_tokens_ && end < range_.end &&
                dataset_->document_begin(dataset_->document_of(end)) < end;
  return row;
}

void read_row(const IndexedDataset& dataset, const PackedRow& row, const TokenSpans& spans,
              int64_t vocab_size, int64_t pad, int64_t* tokens, int64_t* targets) {
  for (const TokenSpan& span : spans) {
    std::fill_n(tokens, span.size(), pad);
    std::fill_n(targets, span.size(), kIgnoredLabel);
    for_stretches(row, span, [&](TokenSpan held, int64_t offset, bool ends_piece) {
      dataset.read(held.begin, held.size(), tokens + offset, vocab_size);
      // The last target may be another rank's first token. It is in the stream, so the shift needs no
      // exchange.
      const bool has_next = !ends_piece || row.goes_on;
      const TokenSpan next{held.begin + 1, held.end + (has_next ? 1 : 0)};
      dataset.read(next.begin, next.size(), targets + offset, vocab_size);
      dataset.prompts().ignore(next, targets + offset);
    });
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
