#include "trireme/comm/peer_memory.h"

#include <cstring>
#include <filesystem>
#include <poll.h>
#include <random>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"

namespace trireme {
namespace {

// In a new namespace of processes, /proc may still be that of the namespace outside: its numbers then mean
// other processes.
bool proc_numbers_processes_as_this_one() {
  std::error_code unread;
  return std::filesystem::read_symlink("/proc/self", unread) == std::to_string(::getpid());
}

// Equal where process numbers mean the same processes, in /proc too. Ranks of two network namespaces count as
// two machines, as elsewhere. Empty: unknown.
std::string process_id_space() {
  return proc_numbers_processes_as_this_one() ? machine_with_namespaces({"pid", "net"}) : std::string();
}

bool is_this_space(const std::string& space) {
  return !space.empty() && space == process_id_space();
}

}  // namespace

MemoryProof::MemoryProof() : nonce_((uint64_t{std::random_device{}()} << 32) | std::random_device{}()) {
  // An error means that this kernel does not restrict readers to ancestors.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
}

Json MemoryProof::card() const {
  return {{"machine", process_id_space()},
          {"process", ::getpid()},
          {"address", reinterpret_cast<uint64_t>(&nonce_)},
          {"nonce", nonce_}};
}

PeerProcess::PeerProcess(const Json& card)
    : on_this_machine_(is_this_space(card.at("machine"))),
      process_id_(card.at("process")),
      nonce_address_(card.at("address")),
      nonce_(card.at("nonce")) {
  if (on_this_machine_) ended_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process_id_, 0)));
}

bool PeerProcess::has_ended() const {
  pollfd end{.fd = ended_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) > 0;  // below 0: a signal came meanwhile
}

std::string PeerProcess::why_unreadable() const {
  if (!on_this_machine_) return "it is on another machine or in another container";
  if (!ended_.is_open()) return cat("process ", process_id_, " cannot be watched: ", std::strerror(errno));
  uint64_t found = 0;
  try {
    read(nonce_address_, &found, sizeof(found));
  } catch (const std::exception& error) {
    return error.what();
  }
  return found == nonce_ ? "" : cat("process ", process_id_, " is another one");
}

void PeerProcess::read(uint64_t address, void* to, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const iovec here{static_cast<char*>(to) + done, static_cast<size_t>(bytes - done)};
    const iovec there{reinterpret_cast<void*>(address + static_cast<uint64_t>(done)), here.iov_len};
    const ssize_t got = ::process_vm_readv(process_id_, &here, 1, &there, 1, 0);
    if (got <= 0)
      throw std::runtime_error(
          cat("the memory of process ", process_id_, " cannot be read: ", std::strerror(errno)));
    done += got;
  }
}

}  // namespace trireme
