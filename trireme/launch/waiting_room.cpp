#include "trireme/launch/waiting_room.h"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sha256.h"
#include "trireme/launch/run_control.h"

namespace trireme {
namespace {

constexpr double kGreetingSeconds = 10;
constexpr size_t kMostGuests = 1024;  // strangers that say nothing
constexpr int kRoundMilliseconds = 200;
constexpr double kPauseOfAccepting_seconds = 0.1;
constexpr double kWordSeconds = 30;  // between two messages about missing machines

}  // namespace

WaitingRoom::WaitingRoom(const LaunchOptions& options, std::string secret)
    : options_(options),
      secret_(std::move(secret)),
      socket_(options.master_address, options.master_port, ForeignAddress::all_interfaces) {}

bool WaitingRoom::accept() {
  const int descriptor = ::accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
  const bool guests_have_all = descriptor < 0 && (errno == EMFILE || errno == ENFILE) && !guests_.empty();
  // The oldest: a launcher would have spoken by now.
  if (guests_have_all || (descriptor >= 0 && guests_.size() >= kMostGuests)) guests_.pop_front();
  if (descriptor >= 0)
    guests_.push_back({LauncherLink(descriptor), now_seconds(), random_digits(32), std::nullopt});
  return descriptor >= 0 || guests_have_all;
}

void WaitingRoom::let_in(Guest& guest) {
  const LauncherHello& hello = *guest.hello;
  std::string wrong;
  const bool exists = hello.node >= 1 && hello.node < options_.nnodes;
  const int nproc = exists ? options_.ranks_of(hello.node) : options_.nproc;
  if (hello.nnodes != options_.nnodes || hello.nproc != nproc) {
    wrong = cat("was started with --nnodes ", hello.nnodes, " --nproc_per_node ", hello.nproc,
                ", machine 0's with --nnodes ", options_.nnodes, " --nproc_per_node ", nproc);
  } else if (!exists || peers_.count(hello.node) != 0) {
    wrong = cat("says it is machine ", hello.node, " of ", options_.nnodes, ", which ",
                peers_.count(hello.node) != 0 ? cat("the one on ", peers_.at(hello.node).host, " says too")
                                              : std::string("there is none"));
  }
  if (!wrong.empty()) {
    const ConfigError error(cat("launch: the launcher on ", guest.link.peer(), " ", wrong,
                                "; give every launcher the same numbers, and each its own --node_rank"));
    guest.link.send({{"conclusion",
                      {{"again", false},
                       {"code", error.exit_code()},
                       {"report", cat("trireme launch: ", error.what(), "\n")}}}});
    throw error;
  }
  peers_.emplace(hello.node, PeerLauncher{hello.host, std::move(guest.link)});
}

void WaitingRoom::forget_the_lost(double now, std::ostream& err) {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    LauncherLink& link = peer->second.link;
    link.receive();
    link.keep_alive(now);
    if (link.lost().empty()) {
      ++peer;
      continue;
    }
    err << cat("trireme launch: the launcher of machine ", peer->first, " (", peer->second.host,
               ") has gone again: ", link.lost(), "; waiting for another\n")
        << std::flush;
    peer = peers_.erase(peer);
  }
}

bool WaitingRoom::serve(Guest& guest, std::ostream& err) {
  while (const auto line = guest.link.next_line(kLargestGreeting_bytes)) {
    if (!guest.hello) {
      guest.hello = LauncherHello::from(*line);
      if (!guest.hello) return true;
      guest.link.send_line(
          cat(guest.nonce, " ", launcher_proof(secret_, kRoleOfMachine0, *guest.hello, guest.nonce)));
    } else if (equal_in_constant_time(
                   *line, launcher_proof(secret_, kRoleOfOtherMachine, *guest.hello, guest.nonce))) {
      let_in(guest);
      return true;
    } else {
      err << "trireme launch: somebody at " << guest.link.peer()
          << " does not know this run's secret and was turned away\n"
          << std::flush;
      return true;
    }
  }
  return !guest.link.lost().empty() || now_seconds() > guest.since + kGreetingSeconds;
}

std::string WaitingRoom::missing() const {
  std::string text;
  for (int node = 1; node < options_.nnodes; ++node)
    if (peers_.count(node) == 0) text += cat(text.empty() ? "" : ", ", node);
  return text;
}

std::map<int, PeerLauncher> WaitingRoom::wait(TakenSignals& signals, std::ostream& err) {
  const double begin = now_seconds();
  double next_word = begin + kWordSeconds;
  while (static_cast<int>(peers_.size()) + 1 < options_.nnodes) {
    std::vector<pollfd> waiting{{signals.descriptor(), POLLIN, 0}, {socket_.descriptor(), POLLIN, 0}};
    for (const auto& [node, peer] : peers_) waiting.push_back({peer.link.descriptor(), POLLIN, 0});
    for (const Guest& guest : guests_) waiting.push_back({guest.link.descriptor(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), kRoundMilliseconds);
    signals.next_request();
    if (signals.stop_signal() != 0) break;
    if (waiting[1].revents != 0 && !accept()) signals.wait(kPauseOfAccepting_seconds);
    forget_the_lost(now_seconds(), err);  // before another takes the number of a lost one
    guests_.remove_if([&](Guest& guest) { return serve(guest, err); });
    const double now = now_seconds();
    if (now > begin + options_.join_seconds)
      throw CommError(cat(
          "launch: the launchers of machines ", missing(), " did not come to ", options_.master_address, ":",
          options_.master_port, " within ", options_.join_seconds,
          " s (--join_seconds); is `trireme launch --node_rank N` running there, with this run's secret?"));
    if (now > next_word) {
      err << "trireme launch: waiting for the launchers of machines " << missing() << "\n" << std::flush;
      next_word = now + kWordSeconds;
    }
  }
  return std::move(peers_);
}

}  // namespace trireme
