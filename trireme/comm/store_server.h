// The store of the run, in rank 0's process: a thread that serves only peers that proved the run's secret.
//
//   a stranger             is dropped: at once after an invalid message; the oldest first if there are many
//   a rank, proved         waits until all ranks have come, or hears why there is no run (meeting.h)
//   its requests           are answered from the table (store_table.h)
//   a rank that ends       without goodbye: requests that must wait are answered "lost" from then on, and the
//                          key that heartbeats read says so (heartbeat.h)
#pragma once

#include <chrono>
#include <memory>

#include "trireme/comm/rank_identity.h"

namespace trireme {

class StoreServer {
 public:
  // Takes over the listening socket. All ranks must come within `timeout`.
  StoreServer(int listening_descriptor, const RankIdentity& identity, std::chrono::milliseconds timeout);
  // Closes every connection.
  ~StoreServer();
  StoreServer& operator=(StoreServer&&) = delete;
  int port() const { return port_; }

 private:
  class Service;
  std::unique_ptr<Service> service_;
  int port_ = 0;
};

}  // namespace trireme
