// A TCP connection on which nothing waits beyond a deadline: connecting, sending, receiving.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/base/resolved_address.h"

namespace trireme {

using Deadline = std::chrono::steady_clock::time_point;

// The other side closed the connection, or the network did.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class DeadlinePassed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Connection {
 public:
  // One try. ConnectionLost says why there is no connection; UnknownHost, DeadlinePassed.
  Connection(const std::string& host, int port, Deadline deadline);
  ~Connection();
  Connection& operator=(Connection&&) = delete;

  // These throw ConnectionLost or DeadlinePassed.
  void send(std::string_view bytes, Deadline deadline);
  // What has come, one byte or more, is added to `received`.
  void receive(std::string& received, Deadline deadline);

 private:
  int descriptor_ = -1;
};

// Runs `work` on a thread of its own; nothing when it has not ended by the deadline: then it is left behind, for it may
// wait for ever in a library that knows no deadline. It owns all that it uses.
template <typename Work>
auto within(Deadline deadline, Work work) -> std::optional<decltype(work())> {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace trireme
