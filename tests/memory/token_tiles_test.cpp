#include "trireme/kernels/token_tiles.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(TokenTiles, cover_every_token_once_in_order_and_differ_by_at_most_one) {
  for (int64_t tokens = 0; tokens < 70; ++tokens)
    for (int64_t tile = 1; tile < 80; ++tile) {
      int64_t next = 0, least = tokens, most = 0, tiles = 0;
      for_tiles(tokens, tile, [&](int64_t begin, int64_t count) {
        EXPECT_EQ(begin, next);
        next = begin + count;
        least = std::min(least, count);
        most = std::max(most, count);
        ++tiles;
      });
      EXPECT_EQ(next, tokens);
      EXPECT_LE(most, tile);
      EXPECT_EQ(tiles, (tokens + tile - 1) / tile);
      if (tokens > 0) {
        EXPECT_LE(most - least, 1);
      }
    }
}

}  // namespace
}  // namespace trireme
