// The last step of a tokenizer: pieces of text to ids. One class for each kind of tokenizer.json's "model".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/vocabulary.h"

namespace trireme {

// One thread's cache of the ids of earlier pieces: text repeats words. Bounded: a full cache is emptied.
class PieceCache {
 public:
  // Appends the ids of `piece`: those of an earlier call, or what `encode()` appends to `ids` now.
  template <typename Encode>
  void append(std::string_view piece, std::vector<int32_t>& ids, const Encode& encode) {
    if (piece.size() > kLongestPieceBytes) return encode();
    if (const auto known = ids_.find(piece); known != ids_.end()) {
      ids.insert(ids.end(), known->second.begin(), known->second.end());
      return;
    }
    const size_t before = ids.size();
    encode();
    if (ids_.size() >= kMostPieces) ids_.clear();
    ids_.emplace(std::string(piece),
                 std::vector<int32_t>(ids.begin() + static_cast<ptrdiff_t>(before), ids.end()));
  }

  static constexpr size_t kLongestPieceBytes = 64;

 private:
  static constexpr size_t kMostPieces = size_t{1} << 17;
  std::unordered_map<std::string, std::vector<int32_t>, TextHash, std::equal_to<>> ids_;
};

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  TokenModel& operator=(TokenModel&&) = delete;
  virtual ~TokenModel() = default;

  // Appends the ids of `piece`, which is not empty. Throws DataError where the text would be lost, because
  // the vocabulary has no token for it.
  virtual void encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

// What a piece is made of: GPT-2's byte-level alphabet, or the text's own characters.
enum class Alphabet { bytes, characters };

// Throws ConfigError for a kind of "model" that is not built, by name.
void refuse_unbuilt_model(const Json& model, const std::string& origin);

// Reads tokenizer.json's "model". Throws ConfigError for a kind or a feature that is not built, DataError
// where the file contradicts itself.
std::unique_ptr<const TokenModel> read_token_model(const Json& model, Alphabet alphabet,
                                                   const std::string& origin);

}  // namespace trireme
