#include "trireme/launch/rank_output.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using ::testing::ElementsAre;

struct Streams {
  explicit Streams(bool terminal) : sink(stream, terminal), a(0, sink), b(1, sink) {}
  std::ostringstream stream;
  OutputSink sink;
  RankOutput a, b;
  std::string text() const { return stream.str(); }
};

TEST(RankOutput, joins_what_comes_in_pieces_and_keeps_lines_whole) {
  Streams streams(false);
  streams.a.take("one ");
  streams.b.take("other\n");
  streams.a.take("two\nthree");
  streams.a.finish();
  EXPECT_EQ(streams.text(), "[rank 1] other\n[rank 0] one two\n[rank 0] three\n");
}

TEST(RankOutput, keeps_a_live_line_live_on_a_terminal) {
  Streams streams(true);
  streams.a.take("step 10\rstep 11\r");
  streams.a.take("step 12\ndone\n");
  EXPECT_EQ(streams.text(),
            "[rank 0] step 10\r\033[K[rank 0] step 11\r\033[K[rank 0] step 12\n[rank 0] done\n");
}

TEST(RankOutput, shows_a_live_line_that_begins_with_its_return) {
  Streams streams(true);
  streams.a.take("\rstep 1");
  streams.a.show_pending();
  streams.a.show_pending();  // nothing new: nothing shown
  streams.a.take("\rstep 2\n");
  EXPECT_EQ(streams.text(), "[rank 0] step 1\r\033[K[rank 0] step 1\r\033[K[rank 0] step 2\n");
}

TEST(RankOutput, of_another_rank_replaces_a_live_line) {
  Streams streams(true);
  streams.a.take("a long live line\r");
  streams.a.show_pending();
  streams.b.take("note\n");
  EXPECT_EQ(streams.text(), "[rank 0] a long live line\r\033[K[rank 1] note\n");
  streams.a.take("again\r");
  streams.a.show_pending();
  streams.sink.finish();
  EXPECT_EQ(streams.text(), "[rank 0] a long live line\r\033[K[rank 1] note\n[rank 0] again\r\n");
}

TEST(RankOutput, makes_a_line_of_each_state_in_a_file) {
  Streams streams(false);
  streams.a.take("\rstep 1\rstep 2\r\n");
  EXPECT_EQ(streams.text(), "[rank 0] step 1\n[rank 0] step 2\n");
}

TEST(RankOutput, without_a_prefix_passes_every_byte_as_it_comes) {
  std::ostringstream stream;
  OutputSink sink(stream, true);
  RankOutput output(std::nullopt, sink);
  output.take("{\"a\":\r\n 1");
  EXPECT_EQ(stream.str(), "{\"a\":\r\n 1");  // at once, whole line or not
  output.take(std::string_view("\r}\0", 3));
  output.show_pending();
  output.finish();
  sink.finish();
  EXPECT_EQ(stream.str(), std::string("{\"a\":\r\n 1\r}\0", 12));
}

TEST(RankOutput, cuts_a_very_long_line_in_what_it_remembers_alone) {
  Streams streams(false);
  const std::string line(100000, 'x');
  streams.a.take(line + "\n");
  EXPECT_EQ(streams.text(), "[rank 0] " + line + "\n");
  EXPECT_EQ(streams.a.last_lines().back(), std::string(2000, 'x') + "... (100000 bytes)");
}

TEST(RankOutput, passes_a_line_that_does_not_end_in_pieces) {
  Streams streams(false);
  const std::string piece(size_t{1} << 20, 'x');
  streams.a.take(piece + "y");
  EXPECT_EQ(streams.text(), "[rank 0] " + piece + "\n");
  streams.a.take("\n" + piece + "\n");
  EXPECT_EQ(streams.text(), "[rank 0] " + piece + "\n[rank 0] y\n[rank 0] " + piece + "\n");
}

TEST(RankOutput, remembers_the_last_lines_and_of_a_live_line_the_last_state) {
  Streams streams(false);
  for (int i = 0; i < 30; ++i) streams.a.take("line " + std::to_string(i) + "\n\n");
  EXPECT_EQ(streams.a.last_lines().size(), 12U);
  EXPECT_EQ(streams.a.last_lines().back(), "line 29");
  streams.b.take("begin\nstep 1\rstep 2\rstep 3\nend\n");
  EXPECT_THAT(streams.b.last_lines(), ElementsAre("begin", "step 3", "end"));
}

}  // namespace
}  // namespace trireme
