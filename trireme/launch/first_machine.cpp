// The launcher of machine 0 of several: waits for the other launchers, starts attempts on all machines,
// collects the ends of all ranks, and decides how to go on.
#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/launch/report.h"
#include "trireme/launch/restart_rule.h"
#include "trireme/launch/run_control.h"
#include "trireme/launch/unknown_name.h"
#include "trireme/launch/waiting_room.h"

namespace trireme {
namespace {

class FirstMachine : public RunControl {
 public:
  FirstMachine(const LaunchOptions& options, const std::string& secret, TakenSignals& signals,
               std::ostream& err)
      : options_(options), signals_(signals), err_(err), run_id_(run_id(options)) {
    open_room(secret);
  }

  AttemptStart start(int attempt) override {
    if (room_) {
      peers_ = room_->wait(signals_, err_);
      room_.reset();
    }
    attempt_ = attempt;
    ends_.clear();
    const PeerNews news = read();
    AttemptStart start{attempt, run_id_};
    const int stop_signal = signals_.stop_signal() != 0 ? signals_.stop_signal() : news.stop_signal;
    if (stop_signal != 0) {
      start.over = stopped_between_attempts(stop_signal);
    } else if (!lost_.empty()) {
      start.over = with_lost({}, /*stop_asked=*/false);
    }
    if (start.over) {
      tell_others(*start.over);
      return start;
    }
    start.socket =
        std::make_unique<ListeningSocket>(options_.master_address, 0, ForeignAddress::all_interfaces);
    start.port = start.socket->port();
    broadcast({{"start", attempt}, {"port", start.port}, {"run_id", run_id_}});
    return start;
  }

  void add_to(std::vector<pollfd>& waiting) const override {
    for (const auto& [node, peer] : peers_) waiting.push_back({peer.link.descriptor(), POLLIN, 0});
  }

  PeerNews read() override {
    PeerNews news;
    for (auto& [node, peer] : peers_) {
      while (const auto message = peer.link.next_message()) take(*message, peer, news);
      peer.link.keep_alive(now_seconds());
      if (peer.link.lost().empty() || !lost_.insert(node).second) continue;
      news.failure = true;
    }
    if (news.failure) broadcast({{"failure", true}});
    if (news.stop_signal != 0) broadcast({{"stop", news.stop_signal}});
    return news;
  }

  void tell(const RankEnd& end) override {
    ends_.push_back(end);
    if (end.failed()) broadcast({{"failure", true}});
  }

  void tell_stop(int signal) override { broadcast({{"stop", signal}}); }

  bool waits() const override { return !still_running().empty(); }

  Conclusion conclude(const std::vector<RankEnd>& /*own*/, int stop_signal) override {
    for (const int node : still_running()) {  // a second request to stop ends the wait
      peers_.at(node).link.lose("its ranks had not ended when this launcher was asked a second time to stop");
      lost_.insert(node);
    }
    Conclusion conclusion = decide(options_, attempt_, ends_, stop_signal);
    if (!lost_.empty()) conclusion = with_lost(conclusion, stop_signal != 0);
    Conclusion short_one = conclusion;  // machine 0 prints the whole report
    short_one.report = conclusion.report.substr(0, conclusion.report.find('\n') + 1);
    tell_others(short_one);
    return conclusion;
  }

  void cancel(const Conclusion& conclusion) override { tell_others(conclusion); }

 private:
  // Leaves `room_` empty if asked to stop.
  void open_room(const std::string& secret) {
    const double begin = now_seconds();
    for (bool told = false; signals_.stop_signal() == 0; signals_.wait(kNamePause_seconds)) {
      try {
        room_.emplace(options_, secret);
        if (options_.on_listening) options_.on_listening(room_->port());
        return;
      } catch (const UnknownHost& error) {
        if (now_seconds() > begin + time_for_a_name_seconds(options_)) throw;
        if (!std::exchange(told, true))
          err_ << "trireme launch: waiting for the name of machine 0: " << error.what() << "\n" << std::flush;
      }
    }
  }

  // Machines that are not lost and have not reported the ends of all their ranks.
  std::set<int> still_running() const {
    std::set<int> machines;
    for (const auto& [node, peer] : peers_) {
      const int ranks = options_.ranks_of(node), first = options_.ranks_before(node);
      const auto is_of_node = [&](const RankEnd& end) {
        return end.rank >= first && end.rank < first + ranks;
      };
      if (lost_.count(node) == 0 && std::ranges::count_if(ends_, is_of_node) < ranks) machines.insert(node);
    }
    return machines;
  }

  void broadcast(const Json& message) {
    for (auto& [node, peer] : peers_) peer.link.send(message);
  }

  // One command for all machines has one output, in which machine 0 reports.
  void tell_others(const Conclusion& conclusion) {
    broadcast({{"conclusion",
                {{"again", conclusion.again},
                 {"code", conclusion.code},
                 {"report", options_.by_launcher ? "" : conclusion.report}}}});
  }

  void take(const Json& message, PeerLauncher& peer, PeerNews& news) {
    const std::string origin = cat("a message of the launcher on ", peer.host);
    try {
      if (const Json* end = find_field(message, "end", origin)) {
        ends_.push_back(parse_rank_end(*end, origin));
        news.failure = news.failure || ends_.back().failed();
      }
      if (find_field(message, "stop", origin) != nullptr)
        news.stop_signal = static_cast<int>(whole_number(message, "stop", {1, 64}, origin));
    } catch (const DataError& error) {
      peer.link.lose(error.what());
    }
  }

  // A machine whose launcher is gone cannot take part in another attempt.
  Conclusion with_lost(Conclusion conclusion, bool stop_asked) const {
    // Ranks that had to be killed, for they waited for those of the lost machine, are not to blame.
    const bool killed = conclusion.code != 0 && conclusion.code != CommError::kExitCode;
    if (killed && !stop_asked && !judge(ends_, /*stop_asked=*/true).culprit) {
      conclusion.code = CommError::kExitCode;
      conclusion.report = report_of_killed(ends_, "after that");
    }
    std::string text;
    for (const int node : lost_) {
      const PeerLauncher& peer = peers_.at(node);
      text += cat("trireme launch: the launcher of machine ", node, " (", peer.host, ", ", peer.link.peer(),
                  ") is gone: ", peer.link.lost(), "; its ranks ended with it. Look at its own output\n");
    }
    conclusion.report = text + conclusion.report;
    conclusion.again = false;
    if (conclusion.code == 0) conclusion.code = CommError::kExitCode;
    return conclusion;
  }

  LaunchOptions options_;
  TakenSignals& signals_;
  std::ostream& err_;
  std::string run_id_;
  int attempt_ = 0;
  std::optional<WaitingRoom> room_;  // until all have come
  std::map<int, PeerLauncher> peers_;
  std::set<int> lost_;         // machines
  std::vector<RankEnd> ends_;  // of all ranks, in order of arrival
};

}  // namespace

std::unique_ptr<RunControl> first_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err) {
  return std::make_unique<FirstMachine>(options, secret, signals, err);
}

}  // namespace trireme
