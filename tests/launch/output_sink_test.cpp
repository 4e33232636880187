#include "trireme/launch/output_sink.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/rank_list.h"

namespace trireme {
namespace {

TEST(RankList, names_ranges) {
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({0, 1}), "ranks 0, 1");
  EXPECT_EQ(rank_list({0, 1, 2, 5, 7, 8, 9}), "ranks 0-2, 5, 7-9");
}

struct Gathering {
  std::ostringstream stream;
  OutputSink sink{stream, false, 3600};
  std::string text() {
    sink.finish();
    return stream.str();
  }
};

TEST(OutputSink, tells_once_what_ranks_say_alike) {
  Gathering lines;
  for (const int rank : {0, 2, 1, 3}) {
    lines.sink.line(rank, "trireme: ConfigError: no such flag", false);
    lines.sink.line(rank, rank == 2 ? "" : "see --help", false);
  }
  EXPECT_EQ(lines.text(),
            "[ranks 0-3] trireme: ConfigError: no such flag\n[ranks 0, 1, 3] see --help\n[rank 2] \n");
}

TEST(OutputSink, keeps_the_order_of_each_ranks_lines) {
  Gathering lines;
  for (const char* text : {"a", "b", "a"}) lines.sink.line(0, text, false);
  for (const char* text : {"b", "a", "b"}) lines.sink.line(1, text, false);
  EXPECT_EQ(lines.text(), "[rank 0] a\n[ranks 0, 1] b\n[ranks 0, 1] a\n[rank 1] b\n");
}

TEST(OutputSink, does_not_gather_what_one_rank_repeats) {
  Gathering lines;
  for (int i = 0; i < 3; ++i) lines.sink.line(0, "again", false);
  EXPECT_EQ(lines.text(), "[rank 0] again\n[rank 0] again\n[rank 0] again\n");
}

TEST(OutputSink, shows_what_waited_long_enough) {
  std::ostringstream stream;
  OutputSink sink(stream, false, 1e-9);
  sink.line(0, "text", false);
  EXPECT_EQ(stream.str(), "");
  sink.show_gathered();
  EXPECT_EQ(stream.str(), "[rank 0] text\n");
}

TEST(OutputSink, survives_a_reader_that_has_gone) {
  std::ostringstream stream;
  OutputSink sink(stream, false);
  stream.setstate(std::ios::badbit);  // as a broken pipe leaves it
  sink.line(0, "text", false);
  sink.finish();
  EXPECT_EQ(stream.str(), "");
}

}  // namespace
}  // namespace trireme
