#include "trireme/launch/host_launcher.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/quoted_for_shell.h"
#include "trireme/base/write_all.h"
#include "trireme/launch/pipe.h"

namespace trireme {
namespace {

constexpr int kNoFolder = 120;                       // of the remote shell's line
constexpr int kNoProgram = 127, kNotRunnable = 126;  // of every shell
constexpr size_t kLinesKept = 8;
constexpr size_t kLongestLine_bytes = size_t{1} << 16;  // a longer one passes in pieces

int number_behind(const std::string& words, const std::string& line) {
  int number = 0;
  std::from_chars(line.data() + words.size(), line.data() + line.size(), number);
  return number;
}

// Starts a child of an own process group, so that Control-C reaches this launcher alone. Returns 0 or an
// error number.
int spawn(pid_t& pid, std::vector<std::string> words, int in, int out, int err) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t none, reset;
  ::sigemptyset(&none);
  ::sigemptyset(&reset);
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGTERM}) ::sigaddset(&reset, signal);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &reset);
  const int reason = ::posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return reason;
}

}  // namespace

std::vector<std::string> ssh_words(const std::string& host, const HostOptions& options,
                                   const std::string& program, const std::string& folder) {
  std::vector<std::string> words{"ssh"};
  std::istringstream given(options.launcher_args);
  for (std::string word; given >> word;)
    words.push_back(word);  // first: of equal options, ssh obeys the first
  // Never ask a terminal; find out within half a minute that a host is gone.
  for (const char* setting :
       {"BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=10", "ServerAliveCountMax=3"}) {
    words.emplace_back("-o");
    words.emplace_back(setting);
  }
  words.emplace_back("-T");
  if (options.ssh_port) words.insert(words.end(), {"-p", std::to_string(*options.ssh_port)});
  words.push_back(host);
  words.push_back(cat("cd ", quoted_for_shell(folder), " || exit ", kNoFolder, "; exec ",
                      quoted_for_shell(program), " launch --by_launcher"));
  return words;
}

bool is_this_machine(const std::string& host) {
  if (host.find('@') != std::string::npos) return false;  // another user's, perhaps
  try {
    const ListeningSocket own(host, 0);
    return true;
  } catch (const ConfigError&) {
    return false;  // ssh knows names that no name server knows
  }
}

HostLauncher::HostLauncher(const HostSlots& host, const HostOptions& options, const std::string& program)
    : host_(host.host),
      program_(program),
      folder_(std::filesystem::current_path().string()),
      over_ssh_(!is_this_machine(host.host)) {
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  const auto words = over_ssh_ ? ssh_words(host_, options, program_, folder_)
                               : std::vector<std::string>{program_, "launch", "--by_launcher"};
  if (const int reason = spawn(pid_, words, in.read.get(), out.write.get(), err.write.get()))
    throw ConfigError(cat("launch: cannot run ", words[0], ": ", std::strerror(reason),
                          over_ssh_ ? "; --hostfile needs OpenSSH's client (openssh-client)" : ""));
  stdin_ = std::move(in.write);
  stdout_ = std::move(out.read);
  stderr_ = std::move(err.read);
  for (const int descriptor : {stdout_.get(), stderr_.get()}) ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
}

HostLauncher::~HostLauncher() {
  if (ended()) return;
  kill();
  ::waitpid(pid_, nullptr, 0);
}

bool HostLauncher::take_line(std::string line) {
  if (line.ends_with('\r')) line.pop_back();  // ssh's own
  const std::string listens = kListensWords, again = kAgainWords;
  if (!ready_ && line == kReadyLine) {
    ready_ = true;
    said_.clear();
    return false;
  }
  if (ordered_ && !port_ && line.starts_with(listens)) {
    port_ = number_behind(listens, line);
    return false;
  }
  if (line.starts_with(again)) restarts_ = number_behind(again, line);
  if (line.find_first_not_of(" \r") != std::string::npos) said_.push_back(line);
  if (said_.size() > kLinesKept) said_.pop_front();
  return ordered_;
}

void HostLauncher::drain(FileDescriptor& descriptor, std::string& pending, std::ostream& to) {
  const bool is_stderr = &descriptor == &stderr_;
  read_what_came(descriptor, [&](std::string_view bytes) { pending += bytes; });
  const auto pass = [&](const std::string& text, size_t line_bytes) {
    if (is_stderr ? take_line(text.substr(0, line_bytes)) : ordered_) to << text;
  };
  for (size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1))
    pass(pending.substr(0, end + 1), end);
  if (!pending.empty() && (!descriptor.is_open() || pending.size() > kLongestLine_bytes))
    pass(std::exchange(pending, {}), std::string::npos);
  to << std::flush;
}

void HostLauncher::send(const std::string& line) const {
  write_all(stdin_.get(), line.data(), line.size());  // if it has ended, reap() tells
}

void HostLauncher::give(const LaunchOrder& order) {
  std::string text;
  try {
    text = to_json(order).dump();
  } catch (const Json::exception&) {
    throw ConfigError(
        "launch: an argument, or a variable that is passed to the hosts (NCCL_..., HF_...), is not UTF-8; "
        "rename it, or start a launcher on each machine (--nnodes)");
  }
  ordered_ = true;
  send(text + "\n");
}

void HostLauncher::give_sign_of_life() const {
  if (ready_ && !ended()) send(cat(kSignOfLife, "\n"));
}

void HostLauncher::stop(int signal) {
  if (ordered_) {
    send(cat(kStopWord, signal, "\n"));
  } else {
    stdin_.close();
  }
}

void HostLauncher::kill() const {
  if (!ended()) ::kill(-pid_, SIGKILL);
}

bool HostLauncher::reap(std::ostream& out, std::ostream& err) {
  int status = 0;
  if (ended() || ::waitpid(pid_, &status, WNOHANG) != pid_) return ended();
  pid_ = -1;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  read_stdout(out);
  read_stderr(err);
  return true;
}

bool HostLauncher::said(const char* words) const {
  return std::any_of(said_.begin(), said_.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

bool HostLauncher::may_pass() const {
  return ssh_failed() && !said("Permission denied") && !said("Host key verification failed") &&
         !said("Could not resolve");
}

std::string HostLauncher::why() const {
  std::string text;
  if (ssh_failed() && ready_) {
    text = cat("the ssh connection to ", host_,
               " was lost, or its launcher was killed; the run is stopped on all "
               "hosts. When the host is back, give the same command with --resume_from_checkpoint true");
  } else if (ssh_failed() && said("Host key verification failed")) {
    text = cat("the key of ", host_, "'s ssh server is unknown here, or has changed: run 'ssh ", host_,
               "' once and compare it, or add it to ~/.ssh/known_hosts");
  } else if (ssh_failed() && said("Permission denied")) {
    text = cat(host_, " refused this user's ssh keys: ssh-copy-id ", host_,
               " sets one up; write USER@HOST in the list for another user, --launcher_args '-i FILE' for "
               "another key");
  } else if (ssh_failed() && said("Could not resolve")) {
    text = cat("no host is named ", host_, ": mend its line in the list of hosts, or give it a HostName in ",
               "~/.ssh/config");
  } else if (ssh_failed() && said("Connection refused")) {
    text = cat("no ssh server answers on ", host_, ": start it there, or give its port by --ssh_port");
  } else if (ssh_failed()) {
    text = cat("no ssh connection to ", host_, ": is the machine up, and does 'ssh ", host_, "' work?");
  } else if (!ready_ && over_ssh_ && code_ == kNoFolder) {
    text = cat(host_, " has no folder ", folder_, ": launch from a folder that all hosts have");
  } else if (!ready_ && (code_ == kNoProgram || code_ == kNotRunnable)) {
    text = cat(host_, " cannot run ", program_,
               ": install Trireme there at the same path, or on a file system that all hosts see");
  } else {
    text = cat("the launcher on ", host_, " ended with code ", code_, ready_ ? "" : " before it was ready");
  }
  return said_.empty() ? text : cat(text, "\n    ", host_, " said: ", quotation(said_.back()));
}

}  // namespace trireme
