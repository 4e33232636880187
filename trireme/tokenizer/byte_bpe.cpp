#include "trireme/tokenizer/byte_bpe.h"

#include "trireme/base/error.h"
#include "trireme/tokenizer/byte_level.h"

namespace trireme {

ByteBpe::ByteBpe(const Json& model, const std::string& origin)
    : TokenModel(read_vocabulary(model, origin)),
      origin_(origin),
      merges_(model, vocabulary(), origin),
      ignore_merges_(true_or_false(model, "ignore_merges", origin + ": model", false)) {
  refuse_bpe_options(model, {"unk_token", "byte_fallback"}, origin);
  id_of_byte_.fill(-1);
  for (const auto& [token, id] : vocabulary()) {
    const auto bytes = bytes_of_token(token);
    if (!bytes || bytes->empty()) continue;  // no text's bytes can become it
    if (ignore_merges_) id_of_bytes_.emplace(*bytes, id);
    if (bytes->size() == 1) id_of_byte_.at(static_cast<unsigned char>((*bytes)[0])) = id;
  }
}

void ByteBpe::encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const {
  cache.append(piece, ids, [&] { encode_new(piece, ids); });
}

void ByteBpe::encode_new(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto found = id_of_bytes_.find(piece); found != id_of_bytes_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    symbols.push_back(id_of_byte_[byte]);
    if (symbols.back() < 0)
      throw DataError(cat(origin_, ": the text has the byte ", static_cast<int>(byte),
                          ", for which the vocabulary has no token (\"", token_of_bytes(std::string(1, c)),
                          "\"); it would be lost: use a tokenizer whose vocabulary holds all bytes"));
  }
  merges_.apply(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace trireme
