#include "trireme/kernels/long_documents.h"

#include <set>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(LongDocuments, have_16_lengths_of_graphs_an_octave_and_a_short_rest) {
  for (int64_t octave = 1; octave < (int64_t{1} << 22); octave *= 2) {
    std::set<int64_t> lengths;
    const int64_t stride = octave / 512 + 1;
    for (int64_t tokens = octave; tokens < 2 * octave; tokens += stride) {
      const int64_t square = tokens_of_graph(tokens);
      ASSERT_LE(square, tokens);
      ASSERT_EQ(tokens_of_graph(square), square);
      const double rest = 1 - static_cast<double>(square * square) / static_cast<double>(tokens * tokens);
      ASSERT_LT(rest, 0.12) << tokens;
      lengths.insert(square);
    }
    EXPECT_EQ(lengths.size(), std::min<int64_t>(16, octave));
  }
}

TEST(LongDocuments, gain_from_a_length_that_falls_as_heads_grow) {
  EXPECT_EQ(least_tokens_alone(32, 128), 4096);  // Llama-3-8B on one GPU
  EXPECT_EQ(least_tokens_alone(4, 128), 11776);  // over eight
  EXPECT_EQ(tokens_of_graph(11776), 11776);
  EXPECT_EQ(tokens_of_graph(11775), 11264);
  EXPECT_EQ(least_tokens_alone(2, 32, 1), 64);  // fewer rows no dense call takes
  for (const int64_t width : {24, 100, 192}) EXPECT_EQ(least_tokens_alone(32, width), kNeverAlone);
}

}  // namespace
}  // namespace trireme
