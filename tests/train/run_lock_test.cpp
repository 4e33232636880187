#include "trireme/train/run_lock.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/machine_identity.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace {
std::atomic<bool> no_locks = false;  // as on a file system without them
std::atomic<int> refused_locks = 0;
}  // namespace

extern "C" int flock(int descriptor, int operation) noexcept {
  if (!no_locks) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  ++refused_locks;
  errno = ENOLCK;
  return -1;
}

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

const auto kSilent = [](const std::string&) {};

TEST(RunLock, refuses_a_second_run_with_the_host_and_process_of_the_first) {
  const TemporaryFolder folder;
  {
    const RunLock first(folder / "run", "launch 1", kSilent);
    EXPECT_THAT(message_of<ConfigError>([&] { RunLock(folder / "run", "launch 2", kSilent); }),
                AllOf(HasSubstr((folder / "run").string()), HasSubstr("host " + host_name()),
                      HasSubstr(cat("process ", ::getpid())), HasSubstr("since 20")));
    const RunLock elsewhere(folder / "other", "launch 2", kSilent);
  }
  const RunLock after(folder / "run", "launch 2", kSilent);
}

// The kernel gives it back, whatever is killed.
TEST(RunLock, is_free_as_soon_as_its_process_is_dead) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder / "run", "launch 1", kSilent);
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(message_of<ConfigError>([&] { RunLock(folder / "run", "launch 2", kSilent); }),
              HasSubstr(cat("process ", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const RunLock after(folder / "run", "launch 2", kSilent);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunLock, waits_for_an_attempt_of_its_own_launch_that_is_about_to_end) {
  const TemporaryFolder folder;
  auto first = std::make_unique<RunLock>(folder / "run", "launch 1", kSilent);
  std::atomic<bool> taken = false;
  std::thread second([&] {
    const RunLock lock(folder / "run", "launch 1", kSilent);
    taken = true;
  });
  EXPECT_FALSE(taken);
  first.reset();
  second.join();
  EXPECT_TRUE(taken);
}

TEST(RunLock, waits_for_a_holder_that_has_emptied_its_text_and_is_about_to_let_go) {
  const TemporaryFolder folder;
  folder.write("run.lock", "");
  const int holder = ::open((folder / "run.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(holder, LOCK_EX), 0);
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::close(holder);
  });
  const RunLock lock(folder.path(), "launch 1", kSilent);
  EXPECT_EQ(read_run_lock(folder.path()), lock.text());
}

class RunLockWithoutLocks : public ::testing::Test {
 protected:
  RunLockWithoutLocks() { no_locks = true; }
  ~RunLockWithoutLocks() override { no_locks = false; }
  std::string refusal(const std::string& launch) const {
    return message_of<ConfigError>([&] { RunLock(folder_ / "run", launch, kSilent); });
  }
  Json text() const { return read_json(folder_ / "run/run.lock"); }
  void write(const Json& text) const { folder_.write("run/run.lock", text.dump()); }
  TemporaryFolder folder_;
};

TEST_F(RunLockWithoutLocks, a_holder_that_lives_is_refused_until_it_ends) {
  auto first = std::make_unique<RunLock>(folder_ / "run", "launch 1", kSilent);
  EXPECT_THAT(refusal("launch 2"), HasSubstr(cat("process ", ::getpid())));
  first.reset();
  EXPECT_EQ(std::filesystem::file_size(folder_ / "run/run.lock"), 0U);
  EXPECT_EQ(refusal("launch 2"), "no error");
}

// After the machine's restart, or in a container of the same name and numbers.
TEST_F(RunLockWithoutLocks, the_text_of_a_killed_run_locks_nobody_out) {
  Json left;
  {
    const RunLock killed(folder_ / "run", "launch 1", kSilent);
    left = text();
  }
  write(left);
  EXPECT_THAT(refusal("launch 2"), HasSubstr("is in use")) << "as it is, it is that of a living process";
  for (const auto& [field, other] : {std::pair<const char*, Json>{"boot", "another"},
                                     {"start_ticks", left["start_ticks"].get<int64_t>() - 1}}) {
    Json stale = left;
    stale[field] = other;
    write(stale);
    EXPECT_EQ(refusal("launch 2"), "no error") << field;
    stale.erase(field);
    write(stale);
    EXPECT_EQ(refusal("launch 2"), "no error") << "of an older version, without " << field;
  }
}

TEST_F(RunLockWithoutLocks, an_attempt_of_the_same_launch_is_waited_for) {
  auto first = std::make_unique<RunLock>(folder_ / "run", "launch 1", kSilent);
  refused_locks = 0;
  std::string second;
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    second = refusal("launch 1");
    ended = true;
  });
  while (refused_locks < 3 && !ended) std::this_thread::yield();
  EXPECT_FALSE(ended);
  first.reset();
  waiting.join();
  EXPECT_EQ(second, "no error");
}

TEST_F(RunLockWithoutLocks, the_text_of_another_machines_run_stays) {
  {
    const RunLock first(folder_ / "run", "launch 1", kSilent);
    write({{"host", "another"}, {"process", 1}, {"since", "now"}});
  }
  EXPECT_EQ(text()["host"], "another");
  std::string told;
  const RunLock next(folder_ / "run", "launch 2", [&](const std::string& note) { told = note; });
  EXPECT_THAT(told, HasSubstr("host another, process 1"));
}

TEST(RunLock, of_a_folder_that_cannot_be_made_names_it) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_THAT(message_of<DataError>([&] { RunLock(folder / "file/run", "", kSilent); }),
              HasSubstr((folder / "file/run").string()));
}

}  // namespace
}  // namespace trireme
