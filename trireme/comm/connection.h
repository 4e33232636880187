// A TCP connection whose connect, send and receive calls never wait beyond a deadline.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/base/file_descriptor.h"

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
  // Tries once to connect. Throws ConnectionLost with the reason, UnknownHost or DeadlinePassed.
  Connection(const std::string& host, int port, Deadline deadline);

  // This machine's end of the connection, in digits: "10.0.0.7". Throws ConnectionLost.
  std::string local_address() const;
  // These throw ConnectionLost or DeadlinePassed.
  void send(std::string_view bytes, Deadline deadline);
  // Appends the bytes that have come, one or more, to `received`.
  void receive(std::string& received, Deadline deadline);

 private:
  FileDescriptor descriptor_;
};

// Runs `work` on a new thread. Returns nullopt if `work` has not ended by the deadline; its thread is then
// left running, because a library without deadlines may wait forever. `work` must own everything that it
// uses. Throws what `work` throws.
template <typename Work>
auto within(Deadline deadline, Work work) -> std::optional<decltype(work())> {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace trireme
