#include "trireme/launch/launcher_link.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/poll_until.h"
#include "trireme/base/resolved_address.h"
#include "trireme/base/sha256.h"
#include "trireme/base/watch_connection.h"

namespace trireme {
namespace {

constexpr size_t kLargestMessage_bytes = size_t{1} << 20;
constexpr std::chrono::seconds kTimeToConnect(5);  // to each address
constexpr int kSendSeconds = 10;                   // time limit if the peer reads nothing
constexpr double kSignOfLifeSeconds = 5;
constexpr double kSilenceSeconds = 30;

std::string address_of_peer(int descriptor) {
  ResolvedAddress peer{.size = sizeof peer.storage};
  std::string digits;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size) == 0)
    digits = peer.digits();
  return digits.empty() ? "unknown" : digits;
}

}  // namespace

std::string LauncherHello::line() const {
  return cat("trireme-launch 2 ", node, " ", nnodes, " ", nproc, " ", host, " ", nonce);
}

std::optional<LauncherHello> LauncherHello::from(const std::string& line) {
  std::istringstream in(line);
  LauncherHello hello;
  std::string name;
  int version = 0;
  if (!(in >> name >> version >> hello.node >> hello.nnodes >> hello.nproc >> hello.host >> hello.nonce) ||
      name != "trireme-launch" || version != 2)
    return std::nullopt;
  return hello;
}

std::string launcher_proof(const std::string& secret, const std::string& role, const LauncherHello& hello,
                           const std::string& nonce_of_machine_0) {
  return hex_digits(hmac_sha256(secret, cat(role, "\n", hello.line(), "\n", nonce_of_machine_0)));
}

LauncherLink::LauncherLink(int descriptor)
    : descriptor_(descriptor),
      peer_(address_of_peer(descriptor)),
      heard_seconds_(now_seconds()),
      sign_seconds_(heard_seconds_) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  watch_connection(descriptor);
  const timeval limit = {kSendSeconds, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

LauncherLink LauncherLink::connect(const std::string& host, int port) {
  int reason = 0;
  for (const ResolvedAddress& address : resolve(host, port)) {
    FileDescriptor descriptor(
        ::socket(address.generic()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    reason = descriptor.is_open()
                 ? connect_until(descriptor.get(), address, std::chrono::steady_clock::now() + kTimeToConnect)
                       .value_or(ETIMEDOUT)
                 : errno;
    if (reason == 0) return LauncherLink(descriptor.release());
  }
  throw CommError(
      cat("cannot connect to the launcher of machine 0 at ", host, ":", port, ": ", std::strerror(reason)));
}

void LauncherLink::lose(const std::string& reason) {
  if (lost_.empty()) lost_ = reason;
  descriptor_.close();
}

void LauncherLink::send_line(const std::string& line) {
  const std::string whole = line + "\n";
  for (size_t sent = 0; sent < whole.size() && descriptor_.is_open();) {
    const ssize_t count = ::send(descriptor_.get(), whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return lose(errno == EAGAIN ? cat("it took no message for ", kSendSeconds, " s")
                                  : std::strerror(errno));
    sent += static_cast<size_t>(count);
  }
}

void LauncherLink::keep_alive(double now) {
  if (descriptor_.is_open() && now > heard_seconds_ + kSilenceSeconds)
    lose(cat("it gave no sign of life for ", kSilenceSeconds, " s"));
  if (now < sign_seconds_ + kSignOfLifeSeconds) return;
  sign_seconds_ = now;
  send(Json::object());
}

void LauncherLink::receive() {
  while (descriptor_.is_open()) {
    std::array<char, 16384> buffer{};
    const ssize_t count = ::recv(descriptor_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      heard_seconds_ = now_seconds();
      received_.append(buffer.data(), static_cast<size_t>(count));
      if (received_.size() > kLargestMessage_bytes) return;
    } else if (count == 0) {
      lose("it closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      lose(std::strerror(errno));
    }
  }
}

std::optional<std::string> LauncherLink::next_line(size_t largest_bytes) {
  if (received_.find('\n') == std::string::npos) receive();
  const size_t end = received_.find('\n');
  if (end != std::string::npos && end <= largest_bytes) {
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }
  if (received_.size() > largest_bytes) lose("it sent a line beyond the limit");
  return std::nullopt;
}

std::optional<std::string> LauncherLink::wait_for_line(size_t largest_bytes, std::chrono::seconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  for (;;) {
    if (auto line = next_line(largest_bytes)) return line;
    if (!descriptor_.is_open() || poll_until(descriptor_.get(), POLLIN, end) <= 0) return std::nullopt;
  }
}

std::optional<Json> LauncherLink::next_message() {
  const auto line = next_line(kLargestMessage_bytes);
  if (!line) return std::nullopt;
  try {
    Json message = parse_json(*line, cat("a message of the launcher at ", peer_));
    if (message.is_object()) return message;
    lose("it sent something else than a message");
  } catch (const DataError& error) {
    lose(error.what());
  }
  return std::nullopt;
}

}  // namespace trireme
