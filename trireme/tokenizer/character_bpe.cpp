#include "trireme/tokenizer/character_bpe.h"

#include <algorithm>
#include <cstdio>
#include <unordered_set>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

std::string byte_token(uint32_t byte) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "<0x%02X>", byte);
  return text.data();
}

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x");
}

uint32_t first_character(std::string_view text) {
  return read_character(text, 0).code;
}

uint32_t last_character(std::string_view text) {
  return read_character(text, begin_of_last_character(text, text.size())).code;
}

int32_t id_or_none(const Vocabulary& vocabulary, const std::string& token) {
  const auto found = vocabulary.find(token);
  return found == vocabulary.end() ? -1 : found->second;
}

}  // namespace

struct CharacterBpe::Neighbours {
  std::string unknown;                  // the unknown token
  std::unordered_set<uint64_t> joined;  // left character << 32 | right character
  bool merges_have_stand_ins = false;   // tokens that the text's characters do not spell

  void add(std::string_view left, std::string_view right) {
    if (left.empty() || right.empty()) return;
    joined.insert(uint64_t{last_character(left)} << 32 | first_character(right));
    for (const std::string_view token : {left, right})
      if (is_byte_token(token) || token == unknown) merges_have_stand_ins = true;
  }
};

CharacterBpe::CharacterBpe(const Json& model, const std::string& origin)
    : CharacterBpe(model, origin,
                   Neighbours{text_value(model, "unk_token", origin + ": model", ""), {}, false}) {}

CharacterBpe::CharacterBpe(const Json& model, const std::string& origin, Neighbours neighbours)
    : TokenModel(read_vocabulary(model, origin)),
      origin_(origin),
      unknown_id_(id_or_none(vocabulary(), neighbours.unknown)),
      fuses_unknown_(true_or_false(model, "fuse_unk", origin + ": model", false)),
      ignore_merges_(true_or_false(model, "ignore_merges", origin + ": model", false)),
      merges_(model, vocabulary(), origin,
              [&](std::string_view left, std::string_view right) { neighbours.add(left, right); }),
      neighbours_(neighbours.joined.size()),
      cuts_(!neighbours.merges_have_stand_ins) {
  for (const uint64_t pair : neighbours.joined)
    neighbours_.insert(static_cast<int32_t>(pair >> 32), static_cast<int32_t>(pair & 0xFFFFFFFF), {0, 0});
  for (const auto& [token, id] : vocabulary()) {
    longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
    if (token.empty()) continue;
    const Utf8Character character = read_character(token, 0);
    if (static_cast<size_t>(character.bytes) != token.size()) continue;
    if (character.code >= id_of_character_.size()) id_of_character_.resize(character.code + 1, -1);
    id_of_character_[character.code] = id;
  }
  id_of_byte_.fill(-1);
  if (!true_or_false(model, "byte_fallback", origin + ": model", false)) return;
  for (uint32_t byte = 0; byte < 256; ++byte)
    id_of_byte_.at(byte) = id_or_none(vocabulary(), byte_token(byte));
  has_all_bytes_ = !contains(id_of_byte_, -1);
}

int32_t CharacterBpe::id_of_character(uint32_t code) const {
  return code < id_of_character_.size() ? id_of_character_[code] : -1;
}

bool CharacterBpe::may_cut(uint32_t left, uint32_t right) const {
  // An unknown token is appended late and may cover several characters: none is pending behind a known one.
  return neighbours_.find(static_cast<int32_t>(left), static_cast<int32_t>(right)).rank < 0 &&
         (has_all_bytes_ || id_of_character(left) >= 0);
}

void CharacterBpe::encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const {
  if (ignore_merges_ && piece.size() <= longest_token_bytes_) {
    if (const auto found = vocabulary().find(piece); found != vocabulary().end()) {
      ids.push_back(found->second);
      return;
    }
  }
  size_t begin = 0;
  if (cuts_ && piece.size() > PieceCache::kLongestPieceBytes) {
    uint32_t left = 0;
    for_characters(piece, [&](size_t offset, const Utf8Character& right) {
      if (offset > begin && may_cut(left, right.code)) {
        encode_part(piece.substr(begin, offset - begin), cache, ids);
        begin = offset;
      }
      left = right.code;
    });
  }
  encode_part(piece.substr(begin), cache, ids);
}

void CharacterBpe::encode_part(std::string_view part, PieceCache& cache, std::vector<int32_t>& ids) const {
  cache.append(part, ids, [&] {
    std::vector<int32_t> symbols = symbols_of(part);
    merges_.apply(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  });
}

std::vector<int32_t> CharacterBpe::symbols_of(std::string_view part) const {
  std::vector<int32_t> symbols;
  symbols.reserve(part.size());
  bool unknown_pending = false;  // the library appends it before the next known character, behind any bytes
  for (size_t offset = 0; offset < part.size();) {
    const Utf8Character character = read_character(part, offset);
    const std::string_view bytes = part.substr(offset, static_cast<size_t>(character.bytes));
    offset += bytes.size();
    if (const int32_t id = id_of_character(character.code); id >= 0) {
      if (std::exchange(unknown_pending, false)) symbols.push_back(unknown_id_);
      symbols.push_back(id);
      continue;
    }
    const auto id_of_byte = [&](char c) { return id_of_byte_.at(static_cast<unsigned char>(c)); };
    if (std::ranges::all_of(bytes, [&](char c) { return id_of_byte(c) >= 0; })) {
      for (const char c : bytes) symbols.push_back(id_of_byte(c));
      continue;
    }
    if (unknown_id_ < 0)
      throw DataError(
          cat(origin_, ": the text has the character \"", quotation(bytes),
              "\", for which the vocabulary has neither a token nor its bytes' tokens nor an unknown "
              "token; it would be lost: use a tokenizer with byte_fallback or unk_token"));
    if (unknown_pending && !fuses_unknown_) symbols.push_back(unknown_id_);
    unknown_pending = true;
  }
  if (unknown_pending) symbols.push_back(unknown_id_);
  return symbols;
}

}  // namespace trireme
