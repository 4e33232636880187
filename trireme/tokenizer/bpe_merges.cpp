#include "trireme/tokenizer/bpe_merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"

namespace trireme {

namespace {

constexpr size_t kFewSymbols = 48;  // with fewer symbols, a scan of all pairs is faster than a heap
constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

bool is_empty(const Json& model, const char* key) {
  return !model.contains(key) || model[key].is_null() || model[key] == Json("") || model[key] == false ||
         model[key] == 0.0;
}

uint64_t key_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
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

MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(std::max<size_t>(16, merges * 2))) {}

size_t MergeTable::slot(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (key * 0x9e3779b97f4a7c15ULL >> 20) & mask;
  while (slots_[slot].key != key && slots_[slot].key != ~uint64_t{0}) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  slots_[slot(key)] = {key, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot(key_of(left, right))].merge;
}

BpeMerges::BpeMerges(const Json& model, const Vocabulary& vocabulary, const std::string& origin,
                     const Listener& each)
    : merges_(array_value(model, "merges", origin + ": model").size()) {
  refuse_bpe_options(model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}, origin);
  const Json& merges = array_value(model, "merges", origin + ": model");
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto pair = read_pair(merges[rank], origin, rank);
    const std::string &left = pair.first, &right = pair.second;
    const auto id_of = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end())
        throw DataError(cat(origin, ": model.merges[", rank, "] joins \"", quotation(left), "\" and \"",
                            quotation(right), "\", but \"", quotation(token), "\" is not in the vocabulary"));
      return found->second;
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    merges_.insert(left_id, right_id, {static_cast<int32_t>(rank), id_of(left + right)});
    if (each) each(left, right);
  }
}

void BpeMerges::apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < kFewSymbols)
    apply_to_few(symbols);
  else
    apply_to_many(symbols);
}

void BpeMerges::apply_to_few(std::vector<int32_t>& symbols) const {
  std::array<MergeTable::Merge, kFewSymbols> pairs;  // of symbols i and i + 1
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

void BpeMerges::apply_to_many(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank;
    uint32_t left;  // index of the left symbol
    int32_t left_id;
    int32_t right_id;
    bool operator<(
        const Candidate& other) const {  // for a heap whose top is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  if (symbols.size() >= std::numeric_limits<uint32_t>::max())
    throw DataError(cat("a piece of ", symbols.size(),
                        " characters is too long for the tokenizer, which takes ",
                        std::numeric_limits<uint32_t>::max() - 1, ": split the document"));
  const auto end = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(end), previous(end);
  for (uint32_t i = 0; i < end; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  std::vector<Candidate> candidates;
  const auto offer = [&](uint32_t left, const auto& take) {
    const uint32_t right = next[left];
    if (right == end) return;
    const MergeTable::Merge merge = merges_.find(symbols[left], symbols[right]);
    if (merge.rank >= 0) take(Candidate{merge.rank, left, symbols[left], symbols[right]});
  };
  for (uint32_t i = 0; i + 1 < end; ++i)
    offer(i, [&](const Candidate& candidate) { candidates.push_back(candidate); });
  std::priority_queue<Candidate> queue({}, std::move(candidates));
  const auto push = [&](const Candidate& candidate) { queue.push(candidate); };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const uint32_t left = top.left, right = next[left];
    // Skips a candidate whose symbols have changed. A symbol joined to its left neighbour is -1.
    if (right == end || symbols[left] != top.left_id || symbols[right] != top.right_id) continue;
    symbols[left] = merges_.find(top.left_id, top.right_id).id;
    symbols[right] = -1;
    next[left] = next[right];
    if (next[left] != end) previous[next[left]] = left;
    if (left > 0) offer(previous[left], push);
    offer(left, push);
  }
  std::erase(symbols, -1);
}

void refuse_bpe_options(const Json& model, std::initializer_list<const char*> options,
                        const std::string& origin) {
  for (const char* option : options)
    if (!is_empty(model, option))
      refuse_tokenizer(origin, cat("the tokenizer's BPE has ", option, " ", quotation(model[option])));
}

}  // namespace trireme
