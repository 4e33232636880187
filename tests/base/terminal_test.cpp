// How wide the terminal is, on pseudo-terminals.
#include "trireme/base/terminal.h"

#include <cstdlib>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

class Terminal : public ::testing::Test {
 protected:
  Terminal() { ::openpty(&outer_, &inner_, nullptr, nullptr, nullptr); }
  ~Terminal() override {
    ::unsetenv("COLUMNS");
    ::close(outer_);
    ::close(inner_);
  }
  void resize(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(outer_, TIOCSWINSZ, &size), 0);
  }

  int outer_ = -1, inner_ = -1;
};

TEST_F(Terminal, has_the_columns_of_its_window_at_each_time) {
  resize(77);
  EXPECT_EQ(terminal_columns(inner_), 77);
  resize(40);
  EXPECT_EQ(terminal_columns(inner_), 40);
}

TEST_F(Terminal, of_unknown_width_has_those_that_the_environment_says_or_none) {
  ::unsetenv("COLUMNS");
  resize(0);
  EXPECT_EQ(terminal_columns(inner_), 0);
  ::setenv("COLUMNS", "66", 1);
  EXPECT_EQ(terminal_columns(inner_), 66);
  ::setenv("COLUMNS", "wide", 1);
  EXPECT_EQ(terminal_columns(inner_), 0);
}

TEST_F(Terminal, is_no_pipe) {
  ::setenv("COLUMNS", "66", 1);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(terminal_columns(ends[1]), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace trireme
