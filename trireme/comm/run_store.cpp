#include "trireme/comm/run_store.h"

#include <exception>
#include <unistd.h>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/resolved_address.h"
#include "trireme/comm/failure.h"

namespace trireme {
namespace {

using StoreClock = std::chrono::steady_clock;

// Pause between two tries to connect.
constexpr auto kFirstPause = std::chrono::milliseconds(10);
constexpr auto kLongestPause = std::chrono::milliseconds(500);
// Rank 0 tells which ranks have not come. A rank waits this long beyond its deadline to hear it.
constexpr auto kTimeToHearOfStore = std::chrono::milliseconds(500);

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Advice if nobody, or another program, answers at rank 0's address.
constexpr const char* kLookAtRank0 =
    "Look at rank 0's output; check that it was started, and that MASTER_ADDR and MASTER_PORT are the same "
    "for all ranks";

}  // namespace

RunStore::RunStore(RankIdentity identity, std::chrono::milliseconds timeout,
                   std::shared_ptr<StoreServer> server)
    : Store(timeout), identity_(std::move(identity)), server_(std::move(server)) {
  join();
}

RunStore::RunStore(const RunStore& first, std::chrono::milliseconds timeout)
    : Store(timeout), identity_(first.identity_), server_(first.server_), first_(false) {
  join();
}

RunStore::~RunStore() {
  if (!first_ || connection_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    constexpr std::chrono::milliseconds kPatience(200);
    ask(StoreRequest::goodbye, {}, std::min(timeout_, kPatience));
  } catch (const std::exception&) {
    // The store is gone before this rank.
  }
}

c10::intrusive_ptr<c10d::Store> RunStore::clone() {
  return c10::intrusive_ptr<RunStore>::unsafe_steal_from_new(new RunStore(*this, timeout_));
}

void RunStore::join() {
  const auto begin = StoreClock::now();
  const auto deadline = begin + timeout_;
  const auto waited = [&] { return std::chrono::duration<double>(StoreClock::now() - begin).count(); };
  std::string last;
  bool unknown_host = false;
  StoreClock::duration pause = kFirstPause;
  while (true) {
    try {
      const Verdict verdict = meet(deadline);
      if (verdict.kind == Verdict::Kind::go) return;
      if (verdict.kind != Verdict::Kind::come_later) refuse(verdict, waited());
      last = verdict.reason;
      unknown_host = false;
    } catch (const ConnectionLost& error) {
      last = error.what();
      unknown_host = false;
    } catch (const UnknownHost& error) {
      last = error.what();
      unknown_host = true;
    } catch (const DeadlinePassed& error) {
      if (last.empty()) last = error.what();
    }
    connection_.reset();
    if (unknown_host &&
        StoreClock::now() - begin >= std::min<StoreClock::duration>(kTimeForAName, timeout_ / 2))
      throw ConfigError(cat(last, ". Rank ", identity_.rank, " should meet the others there"));
    if (StoreClock::now() + pause >= deadline)
      throw_comm_error({.action = cat("meeting the other ranks at rank 0's address, ", identity_.master()),
                        .world_rank = identity_.rank,
                        .timeout = timeout_,
                        .advice = kLookAtRank0},
                       waited(), last);
    std::this_thread::sleep_for(pause);
    pause = std::min<StoreClock::duration>(2 * pause, kLongestPause);
  }
}

Verdict RunStore::meet(Deadline deadline) {
  connection_ = std::make_unique<Connection>(identity_.master_address, identity_.master_port, deadline);
  received_.clear();
  Nonces nonces;
  nonces.of_rank = random_bytes();
  bool greeted = false;
  try {
    connection_->send(greeting(nonces.of_rank), deadline);
    while (received_.size() < kGreeting_bytes && begins_greeting(received_))
      connection_->receive(received_, deadline);
    const auto nonce = nonce_of(std::string_view(received_).substr(0, kGreeting_bytes));
    if (!nonce)
      throw ConfigError(cat("another program listens at ", identity_.master(), ", where rank ",
                            identity_.rank,
                            " should meet the others; choose another MASTER_PORT (--master_port)"));
    received_.erase(0, kGreeting_bytes);
    nonces.of_store = *nonce;
    greeted = true;
    const Hello hello{.rank = identity_.rank,
                      .size = identity_.size,
                      .first = first_,
                      .attempt = identity_.attempt,
                      .version = program_version(),
                      .host = host_name(),
                      .process = ::getpid(),
                      .secret_origin = identity_.secret.origin};
    connection_->send(proven_frame(hello.texts(), identity_.secret.bytes, kRoleOfRank, nonces), deadline);
    std::optional<std::string> frame;
    while (!(frame = take_frame(received_, kLargestHello_bytes)))
      connection_->receive(received_, deadline + kTimeToHearOfStore);
    Texts texts = texts_of(*frame);
    if (!take_proof(texts, identity_.secret.bytes, kRoleOfStore, nonces) || texts.size() != 2)
      throw ConfigError(
          cat("rank ", identity_.rank, " (host ", host_name(), ") and who listens at ", identity_.master(),
              ", rank 0's address, do not have the same secret: this rank has ", identity_.secret.origin,
              "; give all ranks the same TRIREME_SECRET or TRIREME_SECRET_FILE (docs/security.md)"));
    return Verdict::from(texts);
  } catch (const DeadlinePassed&) {
    throw DeadlinePassed(
        greeted ? "rank 0 answered, and then no more: its process is stopped, or it still waits for ranks"
                : "the connection was taken, and no answer came: rank 0's process is stopped, or "
                  "another program listens there");
  } catch (const ConnectionLost& error) {
    throw ConnectionLost(cat("rank 0 closed the connection: ", error.what()));
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw ConnectionLost(error.what());
  }
}

void RunStore::refuse(const Verdict& verdict, double waited_seconds) const {
  const std::string meeting = cat("meeting the other ranks at ", identity_.master());
  if (verdict.kind == Verdict::Kind::differing)
    throw ConfigError(cat(meeting, " failed on rank ", identity_.rank, ": ", verdict.reason));
  throw_comm_error({.action = meeting, .world_rank = identity_.rank, .timeout = timeout_}, waited_seconds,
                   verdict.reason);
}

Texts RunStore::ask(StoreRequest request, const Texts& arguments, std::chrono::milliseconds timeout) {
  // Nobody answers a waiting request that timed out: the next request replaces it. A live store answers other
  // requests at once, so even a short timeout suffices for them.
  const auto deadline = StoreClock::now() + timeout;
  const std::unique_lock<std::timed_mutex> lock(one_at_a_time_, deadline);
  if (!lock)
    throw DeadlinePassed(cat("the connection to the store of rank 0 at ", identity_.master(),
                             " was in use by another request of this rank all the time"));
  const std::string id = std::to_string(++requests_);
  Texts texts{id, std::string(1, static_cast<char>(request))};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  try {
    if (connection_ == nullptr) throw ConnectionLost("an earlier request was not sent whole in time");
    try {
      connection_->send(frame_of(texts), deadline);
    } catch (const DeadlinePassed&) {
      connection_.reset();  // half a frame may be sent: nothing can follow it
      throw;
    }
    while (true) {
      std::optional<std::string> frame;
      while (!(frame = take_frame(received_, kLargestFrame_bytes))) connection_->receive(received_, deadline);
      Texts answer = texts_of(*frame);
      if (answer.size() < 2 || answer[1].size() != 1) throw std::runtime_error("no answer to a request");
      if (answer[0] != id) continue;  // answers an earlier request that timed out
      const auto status = static_cast<StoreStatus>(answer[1][0]);
      answer.erase(answer.begin(), answer.begin() + 2);
      if (status == StoreStatus::lost)
        throw std::runtime_error(answer.empty() ? "a rank is lost" : answer[0]);
      return answer;
    }
  } catch (const DeadlinePassed&) {
    const bool waits = request == StoreRequest::get || request == StoreRequest::wait;
    throw DeadlinePassed(cat(
        "the store of rank 0 at ", identity_.master(), " gave no answer in time: ",
        waits ? "another rank has not come so far, or rank 0's process or machine is stopped or unreachable"
              : "rank 0's process or machine is stopped or unreachable"));
  } catch (const ConnectionLost& error) {
    throw ConnectionLost(cat("the connection to the store of rank 0 at ", identity_.master(), " is lost (",
                             error.what(), "): rank 0 has ended, or its process or machine is stopped"));
  }
}

void RunStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(StoreRequest::set, {key, text_of(value)});
}

std::vector<uint8_t> RunStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                          const std::vector<uint8_t>& desired) {
  return bytes_of_text(ask(StoreRequest::compare_set, {key, text_of(expected), text_of(desired)}).at(0));
}

std::vector<uint8_t> RunStore::get(const std::string& key) {
  return bytes_of_text(ask(StoreRequest::get, {key}).at(0));
}

int64_t RunStore::add(const std::string& key, int64_t value) {
  return std::stoll(ask(StoreRequest::add, {key, std::to_string(value)}).at(0));
}

bool RunStore::deleteKey(const std::string& key) {
  return ask(StoreRequest::remove, {key}).at(0) == "1";
}

bool RunStore::check(const std::vector<std::string>& keys) {
  return ask(StoreRequest::check, keys).at(0) == "1";
}

int64_t RunStore::getNumKeys() {
  return std::stoll(ask(StoreRequest::count, {}).at(0));
}

void RunStore::wait(const std::vector<std::string>& keys) {
  ask(StoreRequest::wait, keys);
}

void RunStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  ask(StoreRequest::wait, keys, timeout);
}

}  // namespace trireme
