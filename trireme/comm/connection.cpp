#include "trireme/comm/connection.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/poll_until.h"
#include "trireme/base/resolved_address.h"
#include "trireme/base/watch_connection.h"

namespace trireme {
namespace {

std::vector<ResolvedAddress> addresses_of(const std::string& host, int port, Deadline deadline) {
  // The system asks a silent name server for half a minute.
  const auto found = within(deadline, [host, port] { return resolve(host, port); });
  if (!found) throw DeadlinePassed(cat("the name ", host, " was not looked up in time"));
  return *found;
}

// Waits until the socket has news; throws DeadlinePassed.
void wait_for(int descriptor, int16_t events, Deadline deadline) {
  const int ready = poll_until(descriptor, events, deadline);
  if (ready < 0) throw ConnectionLost(std::strerror(errno));
  if (ready == 0) throw DeadlinePassed("no answer");
}

}  // namespace

Connection::Connection(const std::string& host, int port, Deadline deadline) {
  int error = 0;
  for (const ResolvedAddress& address : addresses_of(host, port, deadline)) {
    FileDescriptor descriptor(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const std::optional<int> failure =
        descriptor.is_open() ? connect_until(descriptor.get(), address, deadline) : errno;
    if (!failure) throw DeadlinePassed("no answer");
    error = *failure;
    if (error != 0) continue;
    watch_connection(descriptor.get());
    descriptor_ = std::move(descriptor);
    return;
  }
  throw ConnectionLost(std::strerror(error));
}

std::string Connection::local_address() const {
  ResolvedAddress own{.size = sizeof own.storage};
  std::string digits;
  if (::getsockname(descriptor_.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0)
    digits = own.digits();
  if (digits.empty()) throw ConnectionLost("its address is unknown");
  return digits;
}

void Connection::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      wait_for(descriptor_.get(), POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw ConnectionLost(std::strerror(errno));
    }
  }
}

void Connection::receive(std::string& received, Deadline deadline) {
  std::array<char, 16384> buffer{};
  for (;;) {
    const ssize_t got = ::recv(descriptor_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      received.append(buffer.data(), static_cast<size_t>(got));
      return;
    }
    if (got == 0) throw ConnectionLost("the connection was closed");
    if (errno == EAGAIN)
      wait_for(descriptor_.get(), POLLIN, deadline);
    else if (errno != EINTR)
      throw ConnectionLost(std::strerror(errno));
  }
}

}  // namespace trireme
