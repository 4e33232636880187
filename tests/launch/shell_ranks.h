// Ranks that are shell scripts, and a launcher in a process of its own, so that signals meet nobody else.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/launch/launch.h"

#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace trireme::testing {

inline LaunchOptions shell(int nproc, const std::string& script) {
  LaunchOptions options;
  options.nproc = nproc;
  options.program = "/bin/sh";
  options.command = {"-c", script};
  options.grace_seconds = 0.3;
  return options;
}

// Waits until `condition` holds; false for one that hangs.
template <typename Condition>
bool soon(const Condition& condition) {
  for (int i = 0; i < 15000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

// Whether a process runs no more, soon; a zombie that nobody has collected yet does not run.
inline bool ends_soon(pid_t process) {
  return soon([&] {
    std::string state;
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::getline(stat, state);
    return state.empty() || state.find(") Z ") != std::string::npos;
  });
}

inline pid_t read_pid(const std::filesystem::path& file) {
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  return pid;
}

// Words of a script: its rank leaves the file "there.RANK".
inline std::string there(const TemporaryFolder& folder) {
  return ": > " + (folder / "there.").string() + "$RANK; ";
}
// Whether each of the first ranks has left "WHAT.RANK", soon.
inline bool all_there(const TemporaryFolder& folder, int ranks = 2, const std::string& what = "there") {
  return soon([&] {
    for (int rank = 0; rank < ranks; ++rank)
      if (!std::filesystem::exists(folder / (what + "." + std::to_string(rank)))) return false;
    return true;
  });
}

class LauncherProcess {
 public:
  explicit LauncherProcess(
      const LaunchOptions& options,
      const std::function<int(const LaunchOptions&, std::ostream&, std::ostream&)>& launch_it = launch) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT}) ::signal(signal, SIG_DFL);
    ::signal(SIGPIPE, SIG_IGN);  // as the program does
    std::ofstream out(folder_ / "out"), err(folder_ / "err");
    int code = 99;
    try {
      code = launch_it(options, out, err);
    } catch (const Error& error) {
      err << error.what() << std::flush;
      code = error.exit_code();
    }
    out.flush();
    err.flush();
    ::_exit(code);
  }
  ~LauncherProcess() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  LauncherProcess& operator=(LauncherProcess&&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  // Its code, 128 + signal, or -1 for one that hangs.
  int wait() {
    int status = 0;
    if (!soon([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return bytes_of(folder_ / "out"); }
  std::string err() const { return bytes_of(folder_ / "err"); }

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
};

}  // namespace trireme::testing
