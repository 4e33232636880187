#include "tests/attention/random_sharded_case.h"

#include <algorithm>
#include <random>

namespace trireme_test {

using namespace trireme;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 random_;
};

// U x R, every number of ranks as often as any other.
void draw_ranks(Draw& draw, ShardedCase& c) {
  const int64_t ranks = draw.between(1, 8);
  do {
    c.ulysses = static_cast<int>(draw.between(1, ranks));
  } while (ranks % c.ulysses != 0);
  c.ring = static_cast<int>(ranks / c.ulysses);
}

int64_t draw_tokens(Draw& draw) {
  switch (draw.below(4)) {
    case 0:
      return draw.between(1, 16);
    case 1:
      return draw.between(1, 300);
    default:
      return draw.between(1, 96);
  }
}

// Cuts of one sample into documents.
std::vector<int64_t> draw_documents(Draw& draw, int64_t tokens) {
  std::vector<int64_t> cuts{0, tokens};
  const auto cut_all_from = [&](int64_t token) {
    for (int64_t cut = token; cut < tokens; ++cut) cuts.push_back(cut);
  };
  switch (draw.below(5)) {
    case 0:  // one
      break;
    case 1:  // every token alone
      cut_all_from(0);
      break;
    case 2:  // as a padded row: documents, then a tail of single tokens
      cut_all_from(draw.between(1, tokens));
      cuts.push_back(draw.below(tokens));
      break;
    case 3:  // many short ones
      for (int64_t cut = 1; cut < tokens; ++cut)
        if (draw.one_in(3)) cuts.push_back(cut);
      break;
    default:  // a few, often longer than a share
      for (int64_t count = draw.between(1, 5); count > 0; --count) cuts.push_back(draw.below(tokens));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

}  // namespace

ShardedCase draw_case(uint64_t seed) {
  Draw draw(seed);
  ShardedCase c;
  draw_ranks(draw, c);
  c.method = draw.one_in(2) ? RingMethod::gather : RingMethod::ring;
  c.batch = draw.one_in(2) ? 1 : draw.between(2, 3);
  c.tokens = draw_tokens(draw);
  c.kv_heads = draw.between(1, 4);
  // At least as many query heads as Ulysses ranks.
  const int64_t fewest = (c.ulysses + c.kv_heads - 1) / c.kv_heads;
  c.query_heads = c.kv_heads * std::max(fewest, draw.between(1, 4));
  c.head_chunks = static_cast<int>(draw.between(1, 4));  // now and then more than a rank has heads
  c.width = 8 * draw.between(1, 12);
  c.mask.causality = draw.one_in(3) ? Causality::full : Causality::causal;
  if (draw.one_in(2)) c.mask.window = draw.between(1, draw.one_in(2) ? 8 : c.tokens + 20);
  if (c.ring == 1 && draw.one_in(3)) {
    c.tokens = draw.between(65, 300);
    c.mask.sparse = {64, draw.between(1, 2), draw.below(3), draw.below(4)};
  }
  if (draw.one_in(2))
    for (int64_t b = 0; b < c.batch; ++b) c.cu_seqlens.push_back(draw_documents(draw, c.tokens));
  if (draw.one_in(2)) c.dtype = draw.one_in(2) ? at::kBFloat16 : at::kHalf;
  c.kernel = draw.one_in(5) ? AttentionKernel::reference : AttentionKernel::flash;
  c.keeps_by_heads = draw.one_in(2);
  if (draw.one_in(4)) c.cap = 2;
  return c;
}

}  // namespace trireme_test
