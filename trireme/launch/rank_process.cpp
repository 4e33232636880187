#include "trireme/launch/rank_process.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/launch/pipe.h"

namespace trireme {
namespace {

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) merged.push_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) merged.push_back(cat(name, "=", value));
  }
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs in the child between fork and exec: makes only calls that are safe after fork.
[[noreturn]] void become_rank(const char* program, char** arguments, char** environment, const Pipe& out,
                              const Pipe& err, const Pipe& failure, const std::array<int, 2>& inherit,
                              pid_t launcher) {
  ::setpgid(0, 0);  // Ctrl-C reaches only the launcher, which passes it on; the rank's children end with it
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(CommError::kExitCode);  // the launcher died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGTERM, SIG_DFL);  // by it the launcher asks the rank to end
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out.write.get(), STDOUT_FILENO);
  ::dup2(err.write.get(), STDERR_FILENO);
  for (const int descriptor : inherit)
    if (descriptor >= 0) ::fcntl(descriptor, F_SETFD, 0);
  ::execve(program, arguments, environment);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(failure.write.get(), &reason, sizeof reason);
  ::_exit(127);
}

}  // namespace

RankProcess start_rank(int rank, const std::string& program, const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> environment, int inherit_fd) {
  const auto activity = std::make_shared<ActivityReader>();
  environment["TRIREME_ACTIVITY_FD"] = std::to_string(activity->descriptor());
  // All memory is allocated before fork.
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = merged_environment(environment);
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_rank(program.c_str(), const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), out, err,
                failure, {inherit_fd, activity->descriptor()}, launcher);
  }
  const int fork_reason = errno;
  out.write.close();
  err.write.close();
  failure.write.close();
  int reason = 0;
  const bool failed = pid > 0 && ::read(failure.read.get(), &reason, sizeof reason) == sizeof reason;
  activity->close_descriptor();
  if (pid < 0 || failed) {
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    throw ConfigError(cat("cannot run ", program, ": ", std::strerror(failed ? reason : fork_reason)));
  }
  ::setpgid(pid, pid);  // the child does this too: either may come first
  ::fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  return {rank, pid, std::move(out.read), std::move(err.read), activity};
}

RankLook look_at(const RankProcess& process) {
  RankLook look;
  look.stopped = state_and_numbers(process.pid).starts_with('T');
  if (const auto state = process.activity->read()) {
    look.known = true;
    look.waiting = state->waiting;
    look.still_seconds = state->seconds;
    look.doing = describe(*state);
  }
  return look;
}

}  // namespace trireme
