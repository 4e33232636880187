#include "tests/cli/program.h"

#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace trireme::testing {
namespace {

int code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const std::filesystem::path& output,
                 const ProgramOptions& options)
    : output_(output) {
  const char* binary = std::getenv("TRIREME_BINARY");
  if (binary == nullptr || *binary == '\0')
    throw std::runtime_error(
        "TRIREME_BINARY is not set; run this through ctest, or set it to build/cpu/bin/trireme");
  std::vector<std::string> words{binary};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ == 0) {
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    std::array<int, 2> unread{};
    if (options.unread && ::pipe(unread.data()) == 0) ::close(unread[0]);
    ::dup2(options.unread ? unread[1] : out, STDOUT_FILENO);
    const int err = options.errors.empty()
                        ? out
                        : ::open(options.errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    ::dup2(err, STDERR_FILENO);
    if (options.largest_file_bytes > 0) {
      const auto bytes = static_cast<rlim_t>(options.largest_file_bytes);
      const rlimit limit = {bytes, bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    // Whoever started the tests may ignore some, as a shell does of what it runs in the background.
    for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT})
      ::signal(signal, SIG_DFL);
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (options.inherit >= 0) ::fcntl(options.inherit, F_SETFD, 0);
    ::execv(binary, pointers.data());
    ::_exit(127);
  }
}

Program::~Program() {
  if (ended_) return;
  for (const pid_t child : children()) ::kill(child, SIGKILL);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> all;
  std::ifstream in("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  for (pid_t child = 0; in >> child;) all.push_back(child);
  return all;
}

void Program::send(int signal) const {
  ::kill(pid_, signal);
}

int Program::wait() {
  if (ended_) return code_;
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
  ended_ = true;
  return code_ = code_of(status);
}

std::string Program::output() const {
  std::ostringstream text;
  text << std::ifstream(output_).rdbuf();
  return text.str();
}

std::string output_of(const std::vector<std::string>& arguments, const std::filesystem::path& output,
                      int code, const ProgramOptions& options) {
  Program program(arguments, output, options);
  EXPECT_EQ(program.wait(), code) << program.output();
  return program.output();
}

}  // namespace trireme::testing
