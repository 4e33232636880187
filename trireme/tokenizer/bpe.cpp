#include "trireme/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "trireme/base/error.h"
#include "trireme/tokenizer/byte_level.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"

namespace trireme {

namespace {

constexpr size_t kCachedPieces = size_t{1} << 17;
constexpr size_t kCachedPieceBytes = 64;
constexpr size_t kShortSymbols = 48;  // with fewer symbols, a scan of all pairs is faster than a heap
constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

bool is_empty(const Json& model, const char* key) {
  return !model.contains(key) || model[key].is_null() || model[key] == Json("") || model[key] == false ||
         model[key] == 0.0;
}

std::pair<std::string, std::string> read_pair(const Json& merge, const std::string& origin, size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  throw DataError(
      cat(origin, ": model.merges[", index, "] is ", quotation(merge), R"(; expected "a b" or ["a", "b"])"));
}

}  // namespace

void PieceCache::insert(std::string_view piece, std::span<const int32_t> ids) {
  if (ids_.size() >= kCachedPieces) ids_.clear();
  ids_.emplace(std::string(piece), std::vector<int32_t>(ids.begin(), ids.end()));
}

MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(std::max<size_t>(16, merges * 2))) {}

size_t MergeTable::slot(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (key * 0x9e3779b97f4a7c15ULL >> 20) & mask;
  while (slots_[slot].key != key && slots_[slot].key != ~uint64_t{0}) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  slots_[slot(key)] = {key, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  return slots_[slot(key)].merge;
}

Bpe::Bpe(const Json& model, const std::string& origin)
    : origin_(origin), merges_(array_value(model, "merges", origin + ": model").size()) {
  for (const char* option :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    if (!is_empty(model, option))
      refuse_tokenizer(origin, cat("the tokenizer's BPE has ", option, " ", quotation(model[option])));
  const Json& vocabulary = object_value(model, "vocab", origin + ": model");
  const Json& merges = array_value(model, "merges", origin + ": model");
  ignore_merges_ = true_or_false(model, "ignore_merges", origin + ": model", false);

  id_of_byte_.fill(-1);
  for (const auto& [token, id] : vocabulary.items()) {
    const auto value =
        static_cast<int32_t>(whole_number(id, {0, std::numeric_limits<int32_t>::max() - 1},
                                          cat(origin, ": the id of \"", quotation(token), "\"")));
    vocabulary_.emplace(token, value);
    const auto bytes = bytes_of_token(token);
    if (!bytes || bytes->empty()) continue;  // no text's bytes can become it
    id_of_bytes_.emplace(*bytes, value);
    if (bytes->size() == 1) id_of_byte_.at(static_cast<unsigned char>((*bytes)[0])) = value;
  }

  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto pair = read_pair(merges[rank], origin, rank);
    const std::string &left = pair.first, &right = pair.second;
    const auto id_of = [&](const std::string& token) {
      const auto found = vocabulary_.find(token);
      if (found == vocabulary_.end())
        throw DataError(cat(origin, ": model.merges[", rank, "] joins \"", quotation(left), "\" and \"",
                            quotation(right), "\", but \"", quotation(token), "\" is not in the vocabulary"));
      return found->second;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    merges_.insert(left_id, right_id, {static_cast<int32_t>(rank), id_of(left + right)});
  }
}

void Bpe::encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const {
  const bool cached = piece.size() <= kCachedPieceBytes;
  if (cached) {
    if (const auto* known = cache.find(piece)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
  }
  const size_t before = ids.size();
  encode_new(piece, ids);
  if (cached) cache.insert(piece, std::span(ids).subspan(before));
}

void Bpe::encode_new(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto found = id_of_bytes_.find(std::string(piece)); found != id_of_bytes_.end()) {
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
  if (symbols.size() < kShortSymbols)
    merge_short(symbols);
  else
    merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  std::array<MergeTable::Merge, kShortSymbols> pairs;  // of symbols i and i + 1
  size_t count = symbols.size();
  const auto look_up = [&](size_t i) {
    pairs.at(i) = merges_.find(symbols[i], symbols[i + 1]);
    if (pairs.at(i).rank < 0) pairs.at(i).rank = kNoMerge;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs.at(best).rank == kNoMerge) break;
    symbols[best] = pairs.at(best).id;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(count);
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank;
    size_t left;  // index of the left symbol
    int32_t left_id;
    int32_t right_id;
    bool operator<(
        const Candidate& other) const {  // for a heap whose top is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const size_t end = symbols.size();
  std::vector<size_t> next(end), previous(end);
  for (size_t i = 0; i < end; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  std::priority_queue<Candidate> queue;
  const auto offer = [&](size_t left) {
    const size_t right = next[left];
    if (right == end) return;
    const MergeTable::Merge merge = merges_.find(symbols[left], symbols[right]);
    if (merge.rank >= 0) queue.push({merge.rank, left, symbols[left], symbols[right]});
  };
  for (size_t i = 0; i + 1 < end; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const size_t left = top.left, right = next[left];
    // Skips a candidate whose symbols have changed. A symbol joined to its left neighbour is -1.
    if (right == end || symbols[left] != top.left_id || symbols[right] != top.right_id) continue;
    symbols[left] = merges_.find(top.left_id, top.right_id).id;
    symbols[right] = -1;
    next[left] = next[right];
    if (next[left] != end) previous[next[left]] = left;
    if (left > 0) offer(previous[left]);
    offer(left);
  }
  std::erase(symbols, -1);
}

}  // namespace trireme
