// Runs the trireme program as a user would, for tests of what happens to processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace trireme::testing {

// Whoever has not done it by then hangs. No promise of speed: a machine may be ten times slower than another,
// and what ends "at once" ends before a timeout that is longer than this.
constexpr std::chrono::seconds kHangs(300);
constexpr const char* kLongerThanHangs_seconds = "3000";

struct ProgramOptions {
  int64_t largest_file_bytes = 0;     // 0: no limit (RLIMIT_FSIZE of the process and its children)
  std::filesystem::path errors = {};  // where stderr goes; empty: with stdout
  bool unread = false;                // stdout is a pipe whose reader has gone
  std::map<std::string, std::string> environment = {};  // beside this process's own
  int inherit = -1;                                     // a descriptor that stays open
};

std::vector<pid_t> children_of(pid_t process);

// One run of the program (the environment's TRIREME_BINARY); killed with its children when the object goes.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, const std::filesystem::path& output,
          const ProgramOptions& options = {});
  ~Program();
  Program& operator=(Program&&) = delete;

  pid_t pid() const { return pid_; }
  std::vector<pid_t> children() const { return children_of(pid_); }
  void send(int signal) const;
  // Its exit code (128 + signal for one that was killed); -1 for one that hangs.
  int wait();
  // What it has printed so far, both streams unless errors go elsewhere.
  std::string output() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
  std::filesystem::path output_;
};

// What the program prints until it ends; the test fails unless it ends with `code`.
std::string output_of(const std::vector<std::string>& arguments, const std::filesystem::path& output,
                      int code = 0, const ProgramOptions& options = {});

// Waits until `condition` holds; false for one that hangs.
template <typename Condition>
bool eventually(const Condition& condition);

}  // namespace trireme::testing

#include <thread>

template <typename Condition>
bool trireme::testing::eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kHangs;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}
