// How documents fill samples of S tokens. The stream is all documents of a set, one after another; a row is
// one sample:
//
//   stream       a a a a b b b b b b b c c d d d d d e      S = 6
//
//   concat       a a a a b b | b b b b b c | c d d d d d                 attention crosses documents
//   documents    a a a a b b | b b b b b c | c d d d d d                 such windows; attention stays
//                ~~~~~~~ ~~~   ~~~~~~~~~ ~   ~ ~~~~~~~~~                 within a document
//   none         a a a a . . | b b b b b b | c c . . . . | d d d d d .   a document a row
//   best_fit     a a a a c c | b b b b b b | d d d d d .                 whole documents, packed (best_fit.h)
//
// A document that a window's border cuts begins anew after it. With none and best_fit a document longer than a
// row is cut into pieces of S; or its first piece alone is kept, or none (LongDocuments). A token's target is
// the next token of its document, even in the next window or piece. The last token of a document has no target
// (with concat, its target is the next document's first token). Each padding token (.) is a document of one
// token, so that no other token attends to it, and has no target. Tokens of prompts (prompts.h) are no targets
// either. A piece without any target is in no row, nor is such a window of a set with prompts.
//
// N tokens give W = (N - 1) / S whole windows, which leave a token for the last target. Tokens after the last
// window are in no row. Nothing here is collective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/documents.h"
#include "trireme/base/enum_names.h"
#include "trireme/base/token_span.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

enum class Packing { concat, documents, none, best_fit };
constexpr auto enum_names(Packing) {
  using enum Packing;
  return std::to_array<EnumName<Packing>>(
      {{concat, "concat"}, {documents, "documents"}, {none, "none"}, {best_fit, "best_fit"}});
}

// What becomes of a document longer than a row, with none and best_fit.
enum class LongDocuments { cut, truncate, skip };
constexpr auto enum_names(LongDocuments) {
  using enum LongDocuments;
  return std::to_array<EnumName<LongDocuments>>({{cut, "cut"}, {truncate, "truncate"}, {skip, "skip"}});
}

struct PackingRule {
  Packing kind = Packing::documents;
  LongDocuments long_documents = LongDocuments::cut;  // the others with none and best_fit only
  // Rows hold documents from their beginning, not windows of the stream.
  bool whole_documents() const { return kind == Packing::none || kind == Packing::best_fit; }
};

// One sample of S tokens.
struct PackedRow {
  // Spans of the set's stream, one behind another, at most S tokens in all; padding follows.
  std::vector<TokenSpan> pieces;
  // The next token of the stream is the last token's target: of a row of one piece alone.
  bool goes_on = false;
  std::optional<Documents> documents;  // of all S tokens; none with concat
};

// The most tokens of a set that see each other in a row that is long enough: its longest document; no limit
// with concat, which crosses documents.
int64_t longest_context_tokens(const IndexedDataset& dataset, PackingRule rule, int64_t sequence_tokens);

// Tokens of the document, or its piece in a row, that a token of a set is in, on average; with concat, of a
// row.
int64_t mean_context_tokens(const IndexedDataset& dataset, PackingRule rule, int64_t sequence_tokens);

// The documents of `range` that are longer than a row, among those that have tokens.
struct LongDocumentsCount {
  int64_t documents = 0, longer = 0;
  int64_t longer_tokens = 0, longest_tokens = 0;
};
LongDocumentsCount count_long_documents(const IndexedDataset& dataset, TokenSpan range,
                                        int64_t sequence_tokens);

class PackedRows {
 public:
  // The rows of `range` of the set's stream. `next_token_targets`: the first token of a document is no target;
  // false for masked tokens, which are their own targets. Throws DataError when there is no row.
  PackedRows(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, PackingRule rule,
             int64_t sequence_tokens, bool next_token_targets);

  int64_t count() const { return count_; }
  PackedRow row(int64_t index) const;

 private:
  std::string range_text() const;  // what an error says before a number, such as "there are"
  void find_windows();
  void leave_out_windows_of_prompts();
  void find_pieces(bool next_token_targets);
  void add_pieces(TokenSpan document, bool next_token_targets);
  void pack_best_fit();
  PackedRow window(int64_t index) const;
  PackedRow row_of_pieces(int64_t index) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  TokenSpan range_;
  PackingRule rule_;
  int64_t sequence_tokens_ = 0;
  int64_t count_ = 0;
  // concat and documents, of a set with prompts: the windows that have a target.
  std::optional<std::vector<int64_t>> windows_;
  // none and best_fit: the pieces of all rows, row by row.
  std::vector<TokenSpan> pieces_;
  std::vector<int64_t> first_pieces_;  // best_fit: of each row; the number of pieces follows
};

// Reads tokens and targets at positions `spans` of a row, one of each a position. `vocab_size` is as in
// IndexedDataset::read. `pad` fills the positions after the row's tokens.
void read_row(const IndexedDataset& dataset, const PackedRow& row, const TokenSpans& spans,
              int64_t vocab_size, int64_t pad, int64_t* tokens, int64_t* targets);

// use(stretch, offset, ends_piece) of each stretch of the set's stream that positions `span` of a row hold:
// `offset` is its first position, counted from the span's.
template <typename Use>
void for_stretches(const PackedRow& row, TokenSpan span, const Use& use) {
  int64_t first = 0;  // the position of the piece in the row
  for (const TokenSpan& piece : row.pieces) {
    const TokenSpan held{std::max(span.begin, first), std::min(span.end, first + piece.size())};
    if (held.size() > 0) {
      const TokenSpan stretch{piece.begin + held.begin - first, piece.begin + held.end - first};
      use(stretch, held.begin - span.begin, stretch.end == piece.end);
    }
    first += piece.size();
  }
}

}  // namespace trireme
