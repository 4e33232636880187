#include "trireme/launch/several_hosts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iterator>
#include <list>
#include <poll.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/listening_socket.h"
#include "trireme/launch/host_launcher.h"
#include "trireme/launch/launch_secret.h"
#include "trireme/launch/run_control.h"
#include "trireme/launch/start_ranks.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {
namespace {

constexpr int kHostsPollMilliseconds = 200;
// A launcher that ended takes the others with it by itself; those that do not notice are asked to.
constexpr double kTimeToFollowSeconds = 10;
// Before each look for hosts that were lost; the first to let another launch end.
constexpr std::array<double, 3> kPausesSeconds{0.5, 1, 2};

// In a package, the script that finds the libraries stands beside the program's folder.
std::string launcher_program() {
  const std::filesystem::path program = program_of({});
  const std::filesystem::path script = program.parent_path().parent_path() / "bin" / program.filename();
  return program.parent_path().filename() == "libexec" && std::filesystem::exists(script) ? script.string()
                                                                                          : program.string();
}

// The first host as the others reach it; `given` is --master_addr.
std::string master_address(const std::string& given, const std::vector<HostSlots>& hosts) {
  if (hosts.size() == 1) return "127.0.0.1";
  if (!given.empty()) return given;
  std::string name = hosts[0].host;
  name.erase(0, name.find('@') + 1);
  const auto elsewhere = [](const HostSlots& host) { return !is_this_machine(host.host); };
  if (is_loopback(name) && std::any_of(hosts.begin(), hosts.end(), elsewhere))
    throw ConfigError(
        cat("launch: the first of the hosts is ", name,
            ", by which the others do not reach it; write its name in the list of hosts, or give "
            "--master_addr"));
  return name;
}

class SeveralHosts {
 public:
  SeveralHosts(const LaunchOptions& options, const std::vector<HostSlots>& hosts, std::ostream& out,
               std::ostream& err)
      : all_hosts_(hosts),
        program_(launcher_program()),
        given_address_(options.master_address),
        given_port_(options.master_port),
        out_(out),
        err_(err) {
    order_.options = options;
    order_.options.run_id = run_id(options);
    order_.secret = secret_of_one_run(options);
    order_.environment = passed_environment();
    take_hosts(hosts);
  }

  int run() {
    reach_all();
    if (signals_.stop_signal() == 0) refuse_missing_ones();
    for (;;) {
      const int code = attempt();
      if (!lost_a_host(code) || !leave_out_the_lost()) return code;
    }
  }

 private:
  // A secret is made where none is given: the launchers get it from here.
  static std::string secret_of_one_run(LaunchOptions options) {
    options.nnodes = 1;
    return launch_secret(options);
  }

  void take_hosts(const std::vector<HostSlots>& hosts) {
    hosts_ = hosts;
    LaunchOptions& options = order_.options;
    options.nnodes = static_cast<int>(hosts.size());
    options.nproc_of_nodes.clear();
    for (const HostSlots& host : hosts) options.nproc_of_nodes.push_back(static_cast<int>(host.slots.size()));
    const bool first_is_there = hosts[0].host == all_hosts_[0].host;
    options.master_address = master_address(first_is_there ? given_address_ : "", hosts);
  }

  static bool is_missing(const HostLauncher& one) { return !one.ready() || one.ended(); }

  // Starts a launcher on each of all hosts where none is ready, and waits until it is or has ended.
  void reach_all() {
    first_failed_ = nullptr;
    auto launcher = launchers_.begin();
    for (const HostSlots& host : all_hosts_) {
      const bool known = launcher != launchers_.end();
      if (known && !is_missing(*launcher)) {
        ++launcher;
        continue;
      }
      if (known) launcher = launchers_.erase(launcher);
      launchers_.emplace(launcher, host, order_.options.hosts, program_);
    }
    const auto answered = [](const HostLauncher& one) { return one.ready() || one.ended(); };
    wait_until([&] { return std::all_of(launchers_.begin(), launchers_.end(), answered); });
  }

  // From orders to the end of all launchers. Returns the code of the run.
  int attempt() {
    if (signals_.stop_signal() == 0) {
      const HostLauncher& first = launchers_.front();
      order_.options.master_port = given_port_;  // of the attempt before it is a chosen one
      give_order(0);
      if (hosts_.size() > 1) wait_until([&] { return first.port() || first.ended(); });
      if (first.port()) order_.options.master_port = *first.port();
      if (signals_.stop_signal() == 0 && first.port())
        for (size_t node = 1; node < hosts_.size(); ++node) give_order(node);
    }
    follow();
    return conclude();
  }

  void give_order(size_t node) {
    order_.options.node_rank = static_cast<int>(node);
    order_.options.visible_devices = slot_list(hosts_[node].slots);
    std::next(launchers_.begin(), static_cast<std::ptrdiff_t>(node))->give(order_);
  }

  // Until `condition` holds, a request to stop comes, or --join_seconds are over.
  void wait_until(const std::function<bool()>& condition) {
    const double end = now_seconds() + order_.options.join_seconds;
    while (!condition() && signals_.stop_signal() == 0 && now_seconds() < end) wait_for_news();
  }

  void wait_for_news() {
    std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
    for (const HostLauncher& one : launchers_)
      for (const int descriptor : {one.stdout_fd(), one.stderr_fd()})
        waiting.push_back({descriptor, POLLIN, 0});  // poll() skips a closed descriptor (-1)
    ::poll(waiting.data(), waiting.size(), kHostsPollMilliseconds);
    const double now = now_seconds();
    const TakenSignals::StopNews news = signals_.next_request();
    if (news.signal != 0) stop_all(news.signal);
    if (news.signal != 0 && news.request == StopRequest::second) kill_seconds_ = now + kTimeToFollowSeconds;
    if (now > sign_seconds_ + kSignOfLifeOfFirst_seconds) {
      sign_seconds_ = now;
      for (const HostLauncher& one : launchers_) one.give_sign_of_life();
    }
    for (HostLauncher& one : launchers_) {
      one.read_stdout(out_);
      one.read_stderr(err_);
      const bool ran = !one.ended();
      if (ran && one.reap(out_, err_) && one.code() != 0 && first_failed_ == nullptr) first_failed_ = &one;
    }
  }

  void stop_all(int signal) {
    for (HostLauncher& one : launchers_) one.stop(signal);
  }

  // No rank runs yet: nothing is lost by another try.
  void refuse_missing_ones() {
    std::string text;
    bool may_pass = true;
    for (const HostLauncher& one : launchers_) {
      if (!is_missing(one)) continue;
      may_pass = may_pass && (!one.ended() || one.may_pass());
      text += cat("\n  ", why_missing(one));
    }
    if (text.empty()) return;
    text = cat("launch: no rank was started, because of these hosts:", text);
    if (may_pass) throw CommError(text);
    throw ConfigError(text);
  }

  std::string why_missing(const HostLauncher& one) const {
    return one.ended() ? one.why()
                       : cat(one.host(), " gave no answer within ", order_.options.join_seconds,
                             " s (--join_seconds)");
  }

  // Until all launchers have ended.
  void follow() {
    std::optional<double> one_ended_seconds;
    bool asked = signals_.stop_signal() != 0;
    for (HostLauncher& one : launchers_)
      if (!one.ordered()) {  // machine 0 did not begin
        if (one.ready())
          one.stop(SIGTERM);
        else
          one.kill();  // ssh that still connects may not heed its input's end
      }
    while (std::any_of(launchers_.begin(), launchers_.end(), [](const auto& one) { return !one.ended(); })) {
      wait_for_news();
      asked = asked || signals_.stop_signal() != 0;
      const double now = now_seconds();
      if (first_failed_ != nullptr && !one_ended_seconds) one_ended_seconds = now;
      if (one_ended_seconds && now > *one_ended_seconds + kTimeToFollowSeconds && !std::exchange(asked, true))
        stop_all(SIGTERM);
      if (now > kill_seconds_.value_or(now))
        for (const HostLauncher& one : launchers_) one.kill();
    }
  }

  // Machine 0's code, which all launchers return, unless another ended by itself.
  int conclude() {
    if (signals_.stop_signal() != 0 && !launchers_.front().ordered()) {
      const Conclusion stopped = stopped_between_attempts(signals_.stop_signal());
      err_ << stopped.report << std::flush;
      return stopped.code;
    }
    const int decided = launchers_.front().code();
    for (const HostLauncher& one : launchers_)
      if (one.ordered() && one.code() != 0 && (one.ssh_failed() || one.code() != decided))
        err_ << "trireme launch: " << one.why() << "\n" << std::flush;
    if (first_failed_ == nullptr) return 0;
    return first_failed_->ssh_failed() ? CommError::kExitCode : first_failed_->code();
  }

  // Whether another attempt may go on after the loss of a host.
  bool lost_a_host(int code) {
    const auto lost = [](const HostLauncher& one) { return one.ordered() && one.ssh_failed(); };
    int& attempt = order_.options.first_attempt;
    for (const HostLauncher& one : launchers_) attempt = std::max(attempt, one.restarts());
    return order_.options.elastic && code == CommError::kExitCode && signals_.stop_signal() == 0 &&
           attempt < order_.options.max_restarts && std::any_of(launchers_.begin(), launchers_.end(), lost);
  }

  // Reaches the hosts that are there. False where none is, or when asked to stop.
  bool leave_out_the_lost() {
    launchers_.clear();
    for (const double pause_seconds : kPausesSeconds) {
      if (signals_.wait(pause_seconds)) return false;
      reach_all();
      if (std::none_of(launchers_.begin(), launchers_.end(), is_missing)) break;
    }
    if (signals_.stop_signal() != 0) return false;
    std::vector<HostSlots> there;
    auto host = all_hosts_.begin();
    for (const HostLauncher& one : launchers_) {
      if (is_missing(one))
        err_ << cat("trireme launch: --elastic leaves out ", one.host(), ": ", why_missing(one), "\n");
      else
        there.push_back(*host);
      ++host;
    }
    if (there.empty()) return false;
    first_failed_ = nullptr;
    launchers_.remove_if(is_missing);
    LaunchOptions& options = order_.options;
    const int ranks_before = options.world_size();
    if (options.first_ranks == 0) options.first_ranks = ranks_before;
    take_hosts(there);
    ++options.first_attempt;
    err_ << kAgainWords << options.first_attempt << " of " << options.max_restarts << ") on " << there.size()
         << " of " << all_hosts_.size() << " hosts, with " << options.world_size() << " ranks, before "
         << ranks_before << "\n"
         << std::flush;
    return true;
  }

  std::vector<HostSlots> all_hosts_;
  std::vector<HostSlots> hosts_;  // of this attempt
  std::string program_;
  std::string given_address_;  // --master_addr
  int given_port_;             // --master_port
  std::ostream& out_;
  std::ostream& err_;
  TakenSignals signals_;
  LaunchOrder order_;
  std::list<HostLauncher> launchers_;           // of hosts_
  const HostLauncher* first_failed_ = nullptr;  // the first that ended with another code than 0
  std::optional<double> kill_seconds_;          // when all that still run are killed
  double sign_seconds_ = 0;                     // when the last sign of life was given
};

}  // namespace

int launch_on_hosts(const LaunchOptions& options, const std::vector<HostSlots>& hosts, std::ostream& out,
                    std::ostream& err) {
  return SeveralHosts(options, hosts, out, err).run();
}

}  // namespace trireme
