#include "trireme/comm/store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <list>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/watch_connection.h"
#include "trireme/comm/heartbeat.h"
#include "trireme/comm/meeting.h"
#include "trireme/comm/store_messages.h"
#include "trireme/comm/store_table.h"

namespace trireme {
namespace {

using ServerClock = std::chrono::steady_clock;

// Connections that have not proved the secret: beyond this number the oldest is dropped, and each after this
// time.
constexpr size_t kMostUnproven = 256;
constexpr auto kTimeToProve = std::chrono::seconds(10);
// Rank 0 hears a refusal up to this time later, so that late ranks hear it before rank 0 ends the store.
constexpr auto kTimeToTell = std::chrono::seconds(2);
constexpr auto kLongestPoll = std::chrono::seconds(1);
// Rank 0, which is done, keeps the store at most this long for ranks that have not said goodbye.
constexpr auto kTimeToLeave = std::chrono::seconds(2);
// If ranks use every descriptor, the next rank to come waits this long.
constexpr auto kPauseOfAccepting = std::chrono::milliseconds(100);

struct PendingRequest {
  std::string id;
  StoreRequest request{};
  Texts arguments;
  size_t present = 0;  // this many keys are known to exist
};

// One connection.
struct Peer {
  enum class Stage { greeting, proof, meeting, served, closing };
  FileDescriptor descriptor;
  Stage stage = Stage::greeting;
  ServerClock::time_point since;
  Nonces nonces;
  Hello hello;
  std::string received, to_send;
  std::optional<PendingRequest> pending;
  bool has_news = false;
  bool gone = false;
  bool said_goodbye = false;

  bool proven() const { return stage == Stage::meeting || stage == Stage::served; }
};

}  // namespace

class StoreServer::Service {
 public:
  Service(int listening, const RankIdentity& identity, std::chrono::milliseconds timeout)
      : listening_(listening),
        wake_(::eventfd(0, EFD_CLOEXEC)),
        secret_(identity.secret.bytes),
        attempt_(identity.attempt),
        meeting_(identity),
        begin_(ServerClock::now()),
        deadline_(begin_ + timeout) {
    if (!wake_.is_open()) throw InternalError(cat("eventfd: ", std::strerror(errno)));
    ::fcntl(listening_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(listening_.get(), F_SETFD, FD_CLOEXEC);
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }

  ~Service() {
    in_order_ = std::uncaught_exceptions() == 0;
    thread_.request_stop();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) serve_news();
    leaving_ = true;
    const auto until = ServerClock::now() + kTimeToLeave;
    // After another's error they hear here who is lost, and would take rank 0 for that.
    while ((in_order_ || !lost_.empty()) && others_are_here() && ServerClock::now() < until) serve_news();
  }

  void serve_news() {
    wait_for_news();
    accept_connections();
    for (Peer& peer : peers_) {
      if (!peer.has_news || peer.gone) continue;
      try {
        receive(peer);
        advance(peer);
      } catch (const std::exception&) {
        peer.gone = true;  // its bytes are no valid message
      }
    }
    if (!meeting_.verdict() && ServerClock::now() >= deadline_)
      meeting_.end(std::chrono::duration<double>(ServerClock::now() - begin_).count());
    tell_verdict();
    answer_pending();
    for (Peer& peer : peers_) send(peer);
    drop();
  }

  bool others_are_here() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.stage == Peer::Stage::served && peer.hello.first && peer.hello.rank != 0 &&
             !peer.said_goodbye;
    });
  }

  void wait_for_news() {
    const auto now = ServerClock::now();
    const bool accepts = now >= accept_from_;
    std::vector<pollfd> waiting{{leaving_ ? -1 : wake_.get(), POLLIN, 0},
                                {accepts ? listening_.get() : -1, POLLIN, 0}};
    for (const Peer& peer : peers_)
      waiting.push_back(
          {peer.descriptor.get(), static_cast<int16_t>(peer.to_send.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    auto until = !meeting_.verdict() ? deadline_ : told_ ? ServerClock::time_point::max() : tell_by();
    if (!accepts) until = std::min(until, accept_from_);
    const auto time = std::clamp<ServerClock::duration>(until - now, {}, kLongestPoll);
    ::poll(waiting.data(), waiting.size(),
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(time).count()));
    size_t next = 2;
    for (Peer& peer : peers_) peer.has_news = waiting[next++].revents != 0;
  }

  // The latest time at which rank 0 hears a refusal.
  ServerClock::time_point tell_by() const { return std::min(*decided_at_ + kTimeToTell, deadline_); }

  void accept_connections() {
    if (ServerClock::now() < accept_from_) return;
    for (int count = 0; count < 64; ++count) {
      FileDescriptor descriptor(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!descriptor.is_open()) {
        // Strangers may have taken all descriptors.
        if ((errno == EMFILE || errno == ENFILE) && !drop_oldest_unproven())
          accept_from_ = ServerClock::now() + kPauseOfAccepting;
        return;
      }
      watch_connection(descriptor.get());
      Peer& peer = peers_.emplace_back();
      peer.descriptor = std::move(descriptor);
      peer.since = ServerClock::now();
      const auto unproven = static_cast<size_t>(
          std::count_if(peers_.begin(), peers_.end(), [](const Peer& each) { return is_unproven(each); }));
      if (unproven > kMostUnproven) drop_oldest_unproven();
    }
  }

  static bool is_unproven(const Peer& peer) { return !peer.gone && !peer.proven(); }

  // Returns whether there was one.
  bool drop_oldest_unproven() {
    const auto oldest = std::find_if(peers_.begin(), peers_.end(), is_unproven);
    if (oldest == peers_.end()) return false;
    peers_.erase(oldest);
    return true;
  }

  static void receive(Peer& peer) {
    std::array<char, 16384> buffer{};
    const size_t most = peer.proven() ? kLargestFrame_bytes : kLargestHello_bytes + kGreeting_bytes;
    // A few rounds only, so that one peer does not keep the others waiting.
    for (int round = 0; round < 16; ++round) {
      const ssize_t got = ::recv(peer.descriptor.get(), buffer.data(), buffer.size(), 0);
      if (got > 0) {
        peer.received.append(buffer.data(), static_cast<size_t>(got));
        if (peer.received.size() > most + buffer.size()) throw std::runtime_error("more than any message");
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        peer.gone = true;
        return;
      } else {
        return;
      }
    }
  }

  void advance(Peer& peer) {
    if (peer.stage == Peer::Stage::greeting && !begins_greeting(peer.received))
      throw std::runtime_error("no greeting");
    if (peer.stage == Peer::Stage::greeting && peer.received.size() >= kGreeting_bytes) greet(peer);
    if (peer.stage == Peer::Stage::proof)
      if (const auto frame = take_frame(peer.received, kLargestHello_bytes)) admit(peer, texts_of(*frame));
    while (peer.stage == Peer::Stage::served) {
      const auto frame = take_frame(peer.received, kLargestFrame_bytes);
      if (!frame) return;
      take_request(peer, texts_of(*frame));
    }
  }

  static void greet(Peer& peer) {
    const auto nonce = nonce_of(std::string_view(peer.received).substr(0, kGreeting_bytes));
    peer.received.erase(0, kGreeting_bytes);
    peer.nonces = {nonce.value(), random_bytes()};
    peer.to_send = greeting(peer.nonces.of_store);
    peer.stage = Peer::Stage::proof;
  }

  void admit(Peer& peer, Texts texts) {
    const bool proved = take_proof(texts, secret_, kRoleOfRank, peer.nonces);
    peer.hello = Hello::from(texts);
    if (!proved) {
      meeting_.turn_away(peer.hello);
      tell(peer, {Verdict::Kind::wrong_secret, ""});
      return;
    }
    peer.stage = Peer::Stage::meeting;
    if (const auto verdict = meeting_.come(peer.hello)) tell(peer, *verdict);
  }

  void tell(Peer& peer, const Verdict& verdict) {
    peer.to_send += proven_frame({std::to_string(static_cast<int>(verdict.kind)), verdict.reason}, secret_,
                                 kRoleOfStore, peer.nonces);
    peer.stage = verdict.kind == Verdict::Kind::go ? Peer::Stage::served : Peer::Stage::closing;
  }

  void tell_verdict() {
    const auto verdict = meeting_.verdict();
    if (!verdict) return;
    if (!decided_at_) decided_at_ = ServerClock::now();
    told_ = verdict->kind == Verdict::Kind::go || meeting_.all_have_come() || ServerClock::now() >= tell_by();
    for (Peer& peer : peers_)
      if (!peer.gone && peer.stage == Peer::Stage::meeting && (told_ || peer.hello.rank != 0))
        tell(peer, *verdict);
  }

  void take_request(Peer& peer, Texts texts) {
    if (texts.size() < 2 || texts[1].size() != 1) throw std::runtime_error("no request");
    peer.pending = PendingRequest{texts[0], static_cast<StoreRequest>(texts[1][0]), {}, 0};
    peer.pending->arguments.assign(std::make_move_iterator(texts.begin() + 2),
                                   std::make_move_iterator(texts.end()));
    if (peer.pending->request == StoreRequest::goodbye) peer.said_goodbye = true;
    answer(peer);
  }

  // Whether the keys that a request waits for exist. Each check continues where the previous one ended.
  bool is_due(PendingRequest& pending) const {
    if (pending.request != StoreRequest::get && pending.request != StoreRequest::wait) return true;
    while (pending.present < pending.arguments.size() && table_.has(pending.arguments[pending.present]))
      ++pending.present;
    if (pending.present < pending.arguments.size()) return false;
    // A key that existed may have been removed since.
    const auto removed = std::find_if(pending.arguments.begin(), pending.arguments.end(),
                                      [&](const std::string& key) { return !table_.has(key); });
    pending.present = static_cast<size_t>(removed - pending.arguments.begin());
    return removed == pending.arguments.end();
  }

  void answer(Peer& peer) {
    if (!peer.pending) return;
    const bool due = is_due(*peer.pending);
    if (!due && lost_.empty()) return;
    Texts texts{peer.pending->id,
                std::string(1, static_cast<char>(due ? StoreStatus::done : StoreStatus::lost))};
    const Texts values = due ? table_.answer(peer.pending->request, peer.pending->arguments) : Texts{lost_};
    texts.insert(texts.end(), values.begin(), values.end());
    peer.to_send += frame_of(texts);
    peer.pending.reset();
  }

  void answer_pending() {
    for (Peer& peer : peers_) {
      if (peer.gone) continue;
      try {
        answer(peer);
      } catch (const std::exception&) {
        peer.gone = true;  // the request has invalid arguments
      }
    }
  }

  static void send(Peer& peer) {
    while (!peer.gone && !peer.to_send.empty()) {
      const ssize_t sent =
          ::send(peer.descriptor.get(), peer.to_send.data(), peer.to_send.size(), MSG_NOSIGNAL);
      if (sent > 0)
        peer.to_send.erase(0, static_cast<size_t>(sent));
      else if (errno == EAGAIN)
        return;
      else if (errno != EINTR)
        peer.gone = true;
    }
  }

  void drop() {
    const auto now = ServerClock::now();
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (peer->stage == Peer::Stage::closing && peer->to_send.empty()) peer->gone = true;
      if (is_unproven(*peer) && now > peer->since + kTimeToProve) peer->gone = true;
      if (!peer->gone) {
        ++peer;
        continue;
      }
      if (peer->stage == Peer::Stage::meeting) meeting_.leave(peer->hello);
      if (peer->stage == Peer::Stage::served && peer->hello.first && !peer->said_goodbye && lost_.empty())
        lose(cat(peer->hello.name(), " has ended or cannot be reached"));
      peer = peers_.erase(peer);
    }
    // Tells the others about a lost rank now, not after the next event.
    tell_verdict();
    answer_pending();
    for (Peer& peer : peers_) send(peer);
  }

  // Ranks that wait for a key hear of it at once; the others read it in the heartbeat's key. One of c10d's
  // threads may have ended the rank, whose own heartbeat then told nobody.
  void lose(const std::string& rank) {
    lost_ = rank;
    const std::string key = cat(heartbeat_prefix(attempt_), "/", kLostKey);
    if (!table_.has(key)) table_.answer(StoreRequest::set, {key, lost_});  // else the rank itself said more
  }

  FileDescriptor listening_, wake_;
  std::string secret_, attempt_;
  Meeting meeting_;
  StoreTable table_;
  std::list<Peer> peers_;
  std::string lost_;  // which rank is lost; empty: none
  ServerClock::time_point begin_, deadline_;
  ServerClock::time_point accept_from_ = begin_;
  std::optional<ServerClock::time_point> decided_at_;
  bool told_ = false;      // all waiting ranks have heard the verdict, rank 0 last
  bool in_order_ = false;  // rank 0 ends without an error
  bool leaving_ = false;   // of the service's thread alone: the request to stop has been heard
  std::jthread thread_;
};

StoreServer::StoreServer(int listening_descriptor, const RankIdentity& identity,
                         std::chrono::milliseconds timeout) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(listening_descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
    throw ConfigError(cat("environment variable TRIREME_MASTER_FD is ", listening_descriptor,
                          ", which is no listening socket; unset it"));
  port_ = port_of(listening_descriptor);
  service_ = std::make_unique<Service>(listening_descriptor, identity, timeout);
}

StoreServer::~StoreServer() = default;

}  // namespace trireme
