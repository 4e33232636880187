// Byte-pair encoding of one piece of text (Sennrich et al., arXiv 1508.07909) over bytes: start from single
// bytes, and while any neighbours have a merge, join the pair of lowest rank, leftmost first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

// One thread's cache of the ids of earlier pieces: text repeats words. Bounded: a full cache is emptied.
class PieceCache {
 public:
  const std::vector<int32_t>* find(std::string_view piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? nullptr : &found->second;
  }
  void insert(std::string_view piece, std::span<const int32_t> ids);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> ids_;
};

// Maps the ids (left, right) of two neighbouring tokens to their merge.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: they have no merge
    int32_t id = -1;
  };
  explicit MergeTable(size_t merges);
  void insert(int32_t left, int32_t right, Merge merge);  // replaces an earlier merge of the pair
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  size_t slot(uint64_t key) const;
  std::vector<Slot> slots_;  // open addressing, a power of two
};

class Bpe {
 public:
  // `model` is tokenizer.json's "model", of type BPE, with merges as "a b" or ["a", "b"]. Throws ConfigError
  // for unsupported features (dropout, unknown tokens, prefixes, byte fallback), DataError for merges that do
  // not fit the vocabulary.
  Bpe(const Json& model, const std::string& origin);

  // Appends the ids of `piece` (any bytes). Throws DataError when the vocabulary lacks one of its bytes.
  void encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const;

  const std::unordered_map<std::string, int32_t>& vocabulary() const {
    return vocabulary_;
  }  // tokens as the file writes them

 private:
  void encode_new(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  std::string origin_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<std::string, int32_t> id_of_bytes_;
  std::array<int32_t, 256> id_of_byte_{};
  MergeTable merges_;
  bool ignore_merges_ = false;  // true: a piece that is a token becomes that token without merges
};

}  // namespace trireme
