// A rank's connection to the store of the run (store_server.h): c10d's backends exchange their addresses
// through it. Unlike c10d's TCPStore it proves the run's secret, and no call waits beyond the store's
// timeout, whatever the other side does.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/comm/connection.h"
#include "trireme/comm/rank_identity.h"
#include "trireme/comm/store_messages.h"
#include "trireme/comm/store_server.h"

namespace trireme {

class RunStore : public c10d::Store {
 public:
  // Meets at `identity.master()`; returns when every rank has come. Throws ConfigError on all ranks if they
  // cannot be one run, CommError if they do not come within the timeout. Rank 0 passes the server, which
  // lives as long as the last connection of rank 0.
  RunStore(RankIdentity identity, std::chrono::milliseconds timeout,
           std::shared_ptr<StoreServer> server = nullptr);
  // Says goodbye, so the rank's end does not count as a loss. While an exception unwinds the stack it does
  // count.
  ~RunStore() override;
  RunStore& operator=(RunStore&&) = delete;

  // The address of this machine at which rank 0's machine, so probably every other, reaches it: "10.0.0.7".
  std::string local_address() const { return connection_->local_address(); }
  // Opens another connection.
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  RunStore(const RunStore& first, std::chrono::milliseconds timeout);
  void join();
  // Tries once to meet; returns the verdict. Throws ConnectionLost, DeadlinePassed, ConfigError.
  Verdict meet(Deadline deadline);
  [[noreturn]] void refuse(const Verdict& verdict, double waited_seconds) const;
  Texts ask(StoreRequest request, const Texts& arguments, std::chrono::milliseconds timeout);
  Texts ask(StoreRequest request, const Texts& arguments) { return ask(request, arguments, timeout_); }

  RankIdentity identity_;
  std::shared_ptr<StoreServer> server_;  // null but on rank 0
  bool first_ = true;
  std::timed_mutex one_at_a_time_;
  std::unique_ptr<Connection> connection_;
  std::string received_;
  uint64_t requests_ = 0;
};

}  // namespace trireme
