// A connection between the launchers of two machines of a run. It carries lines, most of them JSON.
//
//   other machine -> machine 0   "trireme-launch 2 NODE NNODES NPROC HOST NONCE"
//   machine 0 -> other machine   "NONCE PROOF"    proves that it knows the run's secret
//   other machine -> machine 0   "PROOF"          proves the same
//   from then on                 one JSON object per line; an empty object is a sign of life
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/json.h"

namespace trireme {

// Of the lines before those of JSON.
inline constexpr size_t kLargestGreeting_bytes = 1024;

// How a launcher introduces itself.
struct LauncherHello {
  int node = 0;
  int nnodes = 0;
  int nproc = 0;
  std::string host;
  std::string nonce;
  std::string line() const;
  // nullopt if the line is no such introduction.
  static std::optional<LauncherHello> from(const std::string& line);
};

// Proves that a launcher knows the secret; `role` tells the two sides apart.
std::string launcher_proof(const std::string& secret, const std::string& role, const LauncherHello& hello,
                           const std::string& nonce_of_machine_0);
inline constexpr const char* kRoleOfMachine0 = "machine 0";
inline constexpr const char* kRoleOfOtherMachine = "other machine";

class LauncherLink {
 public:
  explicit LauncherLink(int descriptor);  // a connected socket; closed with the object
  // Connects to one of its addresses, each within some seconds. Throws CommError, UnknownHost.
  static LauncherLink connect(const std::string& host, int port);

  int descriptor() const { return descriptor_.get(); }  // -1 when it was lost
  const std::string& peer() const { return peer_; }     // its address, for messages
  // Why the link was lost; empty while it works.
  const std::string& lost() const { return lost_; }
  void lose(const std::string& reason);

  void send_line(const std::string& line);
  void send(const Json& message) { send_line(message.dump(-1, ' ', false, Json::error_handler_t::replace)); }
  // Reads the bytes that have come, for the functions below. Does not block.
  void receive();
  // The next whole line that has come, of at most `largest_bytes`. Does not block.
  std::optional<std::string> next_line(size_t largest_bytes);
  // Waits for the next line; nullopt if none comes.
  std::optional<std::string> wait_for_line(size_t largest_bytes, std::chrono::seconds most);
  // The next message of a peer that has proved the secret. Does not block.
  std::optional<Json> next_message();

  // Call this after all messages that came are taken. Sends a sign of life if one is due (every 5 s). Loses
  // the link if nothing has come for 30 s. `now` is of now_seconds().
  void keep_alive(double now);

 private:
  FileDescriptor descriptor_;
  std::string peer_, received_, lost_;
  double heard_seconds_ = 0;  // when bytes came last
  double sign_seconds_ = 0;   // when the last sign of life was sent
};

}  // namespace trireme
