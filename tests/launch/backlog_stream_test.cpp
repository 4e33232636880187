// Output through a backlog: whoever writes does not wait for a reader that pauses, and nothing is lost or
// mixed up.
#include "trireme/launch/backlog_stream.h"

#include <array>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "trireme/base/file_descriptor.h"
#include "trireme/launch/pipe.h"

namespace trireme {
namespace {

constexpr int kLines = 100000;  // much more than a pipe holds

std::string line(int number) {
  return "line " + std::to_string(number) + "\n";
}

std::string read_all(const Pipe& pipe, size_t bytes) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() < bytes) {
    const ssize_t count = ::read(pipe.read.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  return text;
}

TEST(BacklogStream, does_not_wait_for_a_reader_that_pauses_and_loses_nothing) {
  const Pipe pipe = make_pipe();
  std::string expected, got;
  {
    BacklogStream out(pipe.write.get());
    for (int i = 0; i < kLines; ++i) {
      out << line(i) << std::flush;
      expected += line(i);
    }
    got = read_all(pipe, expected.size());  // not one byte was read until here
  }
  EXPECT_EQ(got.size(), expected.size());
  EXPECT_TRUE(got == expected);
}

TEST(BacklogStream, waits_where_its_backlog_is_full) {
  const Pipe pipe = make_pipe();
  std::string expected, got;
  std::thread reader;
  {
    BacklogStream out(pipe.write.get(), 1000);
    for (int i = 0; i < kLines; ++i) expected += line(i);
    reader = std::thread([&] { got = read_all(pipe, expected.size()); });
    for (int i = 0; i < kLines; ++i) out << line(i);
  }
  reader.join();
  EXPECT_TRUE(got == expected);
}

TEST(BacklogStream, waits_for_room_in_a_pipe_that_does_not_block) {
  const Pipe pipe = make_pipe();
  ASSERT_EQ(::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK), 0);
  std::string expected, got;
  std::thread reader;
  {
    BacklogStream out(pipe.write.get(), 1000);
    for (int i = 0; i < kLines; ++i) expected += line(i);
    reader = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      got = read_all(pipe, expected.size());
    });
    for (int i = 0; i < kLines; ++i) out << line(i);
  }
  reader.join();
  EXPECT_TRUE(got == expected);
}

TEST(BacklogStream, goes_on_after_a_full_disk) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  BacklogStream out(full.get(), 1000);
  for (int i = 0; i < kLines; ++i) out << line(i);
  EXPECT_TRUE(out.good());
}

TEST(BacklogStream, whose_reader_has_gone_is_bad_and_waits_for_nobody) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  pipe.read.close();
  BacklogStream out(pipe.write.get(), 1000);
  for (int i = 0; i < kLines && out.good(); ++i) out << line(i) << std::flush;
  EXPECT_FALSE(out.good());
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace trireme
