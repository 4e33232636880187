// Byte-pair encoding (Sennrich et al., arXiv 1508.07909): while any neighbours have a merge, join the pair of
// lowest rank, leftmost first.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/vocabulary.h"

namespace trireme {

// Maps two neighbours (ids, or characters) to their merge.
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

class BpeMerges {
 public:
  using Listener = std::function<void(std::string_view left, std::string_view right)>;

  // `model` is tokenizer.json's "model", of type BPE, with merges as "a b" or ["a", "b"]; `each`, if given,
  // is told of every merge. Throws DataError for merges that do not fit the vocabulary, ConfigError for
  // dropout, prefixes and suffixes.
  BpeMerges(const Json& model, const Vocabulary& vocabulary, const std::string& origin,
            const Listener& each = {});

  // Joins the tokens of one piece as far as merges go, in a time near linear in their number.
  void apply(std::vector<int32_t>& symbols) const;

 private:
  void apply_to_few(std::vector<int32_t>& symbols) const;
  void apply_to_many(std::vector<int32_t>& symbols) const;

  MergeTable merges_;
};

// Throws ConfigError if `model` has one of these options with a value other than null, "", false and 0.
void refuse_bpe_options(const Json& model, std::initializer_list<const char*> options,
                        const std::string& origin);

}  // namespace trireme
