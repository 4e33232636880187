// The memory of another process of this machine, read by one system call from where it lies to where it is
// wanted (process_vm_readv). Whether the kernel permits that is found out beforehand, by reading:
//
//   each rank   MemoryProof proof -> proof.card() to all ranks (through the run's store, which only ranks
//               that know its secret reach) -> PeerProcess(their card).why_unreadable(): their nonce, read
//
// Linux lets processes of one user read each other; where it lets only ancestors (Yama), MemoryProof names
// the process that started this one, whose descendants the other ranks are.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/json.h"

namespace trireme {

// Lives until every peer has read the nonce.
class MemoryProof {
 public:
  MemoryProof();
  MemoryProof& operator=(MemoryProof&&) = delete;
  Json card() const;

 private:
  uint64_t nonce_;
};

class PeerProcess {
 public:
  // A process that shall be read has told `card`.
  explicit PeerProcess(const Json& card);

  int process_id() const { return process_id_; }
  bool on_this_machine() const { return on_this_machine_; }  // and in a container with this process
  // Ends of processes, for poll(): readable once the process has ended.
  int end_descriptor() const { return ended_.get(); }
  bool has_ended() const;
  // Why this process cannot read that one; empty: it can.
  std::string why_unreadable() const;
  // Throws std::runtime_error.
  void read(uint64_t address, void* to, int64_t bytes) const;

 private:
  bool on_this_machine_ = false;
  int process_id_ = 0;
  uint64_t nonce_address_ = 0, nonce_ = 0;
  FileDescriptor ended_;
};

}  // namespace trireme
