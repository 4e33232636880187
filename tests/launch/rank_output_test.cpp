#include "trireme/launch/rank_output.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using ::testing::ElementsAre;

struct Streams {
  explicit Streams(bool terminal) : sink(stream, terminal), a("[a] ", sink), b("[b] ", sink) {}
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
  EXPECT_EQ(streams.text(), "[b] other\n[a] one two\n[a] three\n");
}

TEST(RankOutput, keeps_a_live_line_live_on_a_terminal) {
  Streams streams(true);
  streams.a.take("step 10\rstep 11\r");
  streams.a.take("step 12\ndone\n");
  EXPECT_EQ(streams.text(), "[a] step 10\r\033[K[a] step 11\r\033[K[a] step 12\n[a] done\n");
}

TEST(RankOutput, shows_a_live_line_that_begins_with_its_return) {
  Streams streams(true);
  streams.a.take("\rstep 1");
  streams.a.show_pending();
  streams.a.show_pending();  // nothing new: nothing shown
  streams.a.take("\rstep 2\n");
  EXPECT_EQ(streams.text(), "[a] step 1\r\033[K[a] step 1\r\033[K[a] step 2\n");
}

TEST(RankOutput, of_another_rank_replaces_a_live_line) {
  Streams streams(true);
  streams.a.take("a long live line\r");
  streams.a.show_pending();
  streams.b.take("note\n");
  EXPECT_EQ(streams.text(), "[a] a long live line\r\033[K[b] note\n");
  streams.a.take("again\r");
  streams.a.show_pending();
  streams.sink.finish();
  EXPECT_EQ(streams.text(), "[a] a long live line\r\033[K[b] note\n[a] again\r\n");
}

TEST(RankOutput, makes_a_line_of_each_state_in_a_file) {
  Streams streams(false);
  streams.a.take("\rstep 1\rstep 2\r\n");
  EXPECT_EQ(streams.text(), "[a] step 1\n[a] step 2\n");
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
