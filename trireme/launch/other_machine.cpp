// The launcher of a machine other than machine 0: obeys machine 0's launcher and reports this machine's
// events to it.
#include <algorithm>
#include <optional>
#include <ostream>
#include <sstream>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/sha256.h"
#include "trireme/launch/launcher_link.h"
#include "trireme/launch/run_control.h"
#include "trireme/launch/unknown_name.h"

namespace trireme {
namespace {

class OtherMachine : public RunControl {
 public:
  OtherMachine(const LaunchOptions& options, const std::string& secret, TakenSignals& signals,
               std::ostream& err)
      : options_(options), secret_(secret), signals_(signals), err_(err) {}

  AttemptStart start(int /*attempt*/) override {
    if (!link_) join();
    conclusion_.reset();
    AttemptStart start;
    while (!start_message_ && !conclusion_ && lost().empty()) {
      if (!link_) return over(start, stopped_between_attempts(signals_.stop_signal()));  // asked to stop
      std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}, {link_->descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), 1000);
      const TakenSignals::StopNews news = signals_.next_request();
      if (news.signal != 0) {
        tell_stop(news.signal);
        return over(start, stopped_between_attempts(news.signal));
      }
      read();
    }
    if (conclusion_) return over(start, *conclusion_);
    if (!start_message_) return over(start, machine_0_is_gone());
    try {
      start.run_id = text_value(*start_message_, "run_id", origin());
      start.port = static_cast<int>(whole_number(*start_message_, "port", {1, 65535}, origin()));
      start.attempt = static_cast<int>(whole_number(*start_message_, "start", {0, 1000000}, origin()));
    } catch (const DataError& error) {
      link_->lose(error.what());
      return over(start, machine_0_is_gone());
    }
    start_message_.reset();
    return start;
  }

  void add_to(std::vector<pollfd>& waiting) const override {
    waiting.push_back({link_->descriptor(), POLLIN, 0});
  }

  PeerNews read() override {
    PeerNews news;
    while (const auto message = link_->next_message()) {
      try {
        take(*message, news);
      } catch (const DataError& error) {
        link_->lose(error.what());
      }
    }
    link_->keep_alive(now_seconds());
    if (!lost().empty() && !conclusion_) news.failure = true;
    return news;
  }

  void tell(const RankEnd& end) override { link_->send({{"end", to_json(end)}}); }
  void tell_stop(int signal) override { link_->send({{"stop", signal}}); }
  bool waits() const override { return !conclusion_ && lost().empty(); }

  Conclusion conclude(const std::vector<RankEnd>& /*own*/, int /*stop_signal*/) override {
    if (conclusion_) return *conclusion_;
    link_->lose("it had not told how the run ended when this launcher was asked a second time to stop");
    return machine_0_is_gone();
  }
  void cancel(const Conclusion& /*conclusion*/) override { tell_stop(signals_.stop_signal()); }

 private:
  static AttemptStart over(AttemptStart& start, const Conclusion& conclusion) {
    start.over = conclusion;
    return std::move(start);
  }

  std::string lost() const { return link_ ? link_->lost() : ""; }
  std::string origin() const { return cat("a message of the launcher of machine 0 at ", link_->peer()); }

  Conclusion machine_0_is_gone() const {
    return {false, CommError::kExitCode,
            cat("trireme launch: the launcher of machine 0 (", options_.master_address, ") is gone: ", lost(),
                "; the ranks of this machine were ended. Look at its own output\n")};
  }

  void take(const Json& message, PeerNews& news) {
    if (find_field(message, "failure", origin()) != nullptr) news.failure = true;
    if (find_field(message, "stop", origin()) != nullptr)
      news.stop_signal = static_cast<int>(whole_number(message, "stop", {1, 64}, origin()));
    if (find_field(message, "start", origin()) != nullptr) start_message_ = message;
    if (const Json* conclusion = find_field(message, "conclusion", origin())) {
      conclusion_ = {true_or_false(*conclusion, "again", origin()),
                     static_cast<int>(whole_number(*conclusion, "code", {0, 255}, origin())),
                     text_value(*conclusion, "report", origin())};
    }
  }

  // Connects to machine 0. Leaves `link_` empty if asked to stop.
  void join() {
    const double begin = now_seconds();
    std::string told;
    const auto tell = [&](const std::string& why) {
      link_.reset();
      if (told != why) err_ << "trireme launch: waiting for machine 0: " << why << "\n" << std::flush;
      told = why;
    };
    while (signals_.stop_signal() == 0) {
      try {
        link_.emplace(LauncherLink::connect(options_.master_address, options_.master_port));
        greet();
        return;
      } catch (const UnknownHost& error) {
        if (now_seconds() > begin + time_for_a_name_seconds(options_)) throw;
        tell(error.what());
      } catch (const CommError& error) {
        if (now_seconds() > begin + options_.join_seconds)
          throw CommError(cat("launch: ", error.what(), " within ", options_.join_seconds,
                              " s (--join_seconds); is `trireme launch --node_rank 0` running there?"));
        tell(error.what());
      }
      signals_.wait(kNamePause_seconds);
    }
  }

  void greet() {
    const LauncherHello hello{options_.node_rank, options_.nnodes, options_.nproc, host_name(),
                              random_digits(32)};
    link_->send_line(hello.line());
    const auto answer = link_->wait_for_line(kLargestGreeting_bytes, std::chrono::seconds(10));
    std::istringstream words(answer.value_or(""));
    std::string nonce, proof;
    if (!(words >> nonce >> proof))
      throw CommError(cat("no launcher answers at ", options_.master_address, ":", options_.master_port));
    if (!equal_in_constant_time(proof, launcher_proof(secret_, kRoleOfMachine0, hello, nonce)))
      throw ConfigError(
          cat("launch: the launcher of machine 0 at ", options_.master_address, ":", options_.master_port,
              " has another secret than this one; give both the same TRIREME_SECRET or --secret_file"));
    link_->send_line(launcher_proof(secret_, kRoleOfOtherMachine, hello, nonce));
  }

  LaunchOptions options_;
  std::string secret_;
  TakenSignals& signals_;
  std::ostream& err_;
  std::optional<LauncherLink> link_;
  std::optional<Json> start_message_;
  std::optional<Conclusion> conclusion_;
};

}  // namespace

std::unique_ptr<RunControl> other_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err) {
  return std::make_unique<OtherMachine>(options, secret, signals, err);
}

}  // namespace trireme
