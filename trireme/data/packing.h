// How documents fill samples of S tokens. The stream is all documents of a set, one after another; a row is
// one sample:
//
//   stream       a a a a b b b b b b b c c d d d d d e      S = 6
//
//   concat       a a a a b b | b b b b b c | c d d d d d                 attention crosses documents
//   documents    a a a a b b | b b b b b c | c d d d d d                 the same windows; attention stays
//                ~~~~~~~ ~~~   ~~~~~~~~~ ~   ~ ~~~~~~~~~                 within a document
//   none         a a a a . . | b b b b b b | c c . . . . | d d d d d .   a document a row
//
// A document that a window's border cuts begins anew after it. A document longer than a row is cut into
// pieces of S. A token's target is the next token of its document, even in the next window or piece. The last
// token of a document has no target (with concat, its target is the next document's first token). Each
// padding token (.) is a document of one token, so that no other token attends to it, and has no target.
//
// N tokens give W = (N - 1) / S whole windows, which leave a token for the last target. Tokens after the last
// window are in no row. Nothing here is collective.
#pragma once

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

enum class Packing { concat, documents, none };
constexpr auto enum_names(Packing) {
  using enum Packing;
  return std::to_array<EnumName<Packing>>({{concat, "concat"}, {documents, "documents"}, {none, "none"}});
}

// One sample of S tokens.
struct PackedRow {
  TokenSpan stream;                    // span of the set's stream, at most S tokens; padding follows
  bool goes_on = false;                // the next token of the stream is the last token's target
  std::optional<Documents> documents;  // of all S tokens; none with concat
};

// The most tokens of a set that see each other in a row that is long enough: its longest document; no limit
// with concat, which crosses documents.
int64_t longest_context_tokens(const IndexedDataset& dataset, Packing packing);

// Tokens of the document, or its piece in a row, that a token of a set is in, on average; with concat, of a
// row.
int64_t mean_context_tokens(const IndexedDataset& dataset, Packing packing, int64_t sequence_tokens);

class PackedRows {
 public:
  // The rows of `range` of the set's stream. `next_token_targets`: a row of one token that ends its document
  // predicts nothing, and Packing::none leaves it out; false for masked tokens, which are their own targets.
  // Throws DataError when there is no row.
  PackedRows(std::shared_ptr<const IndexedDataset> dataset, TokenSpan range, Packing packing,
             int64_t sequence_tokens, bool next_token_targets);

  int64_t count() const { return count_; }
  PackedRow row(int64_t index) const;

 private:
  std::string range_text() const;  // what an error says before a number, such as "there are"
  void count_windows();
  void count_pieces(bool next_token_targets);
  PackedRow window(int64_t index) const;
  PackedRow piece(int64_t index) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  TokenSpan range_;
  Packing packing_;
  int64_t sequence_tokens_ = 0;
  int64_t count_ = 0;
  // Packing::none: the number of rows before each document of the range; the last entry counts all rows.
  int64_t first_document_ = 0;
  std::vector<int64_t> rows_before_;
};

// Reads tokens and targets at positions `spans` of a row, one of each a position. `vocab_size` is as in
// IndexedDataset::read. `pad` fills the positions after the row's tokens.
void read_row(const IndexedDataset& dataset, const PackedRow& row, const TokenSpans& spans,
              int64_t vocab_size, int64_t pad, int64_t* tokens, int64_t* targets);

}  // namespace trireme
