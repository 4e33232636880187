// Which library's primitives a c10d backend has. Its name tells: a process group of the caller's hides the
// class.
#pragma once

#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme {

inline constexpr std::string_view kNcclBackend = "nccl", kGlooBackend = "gloo";
// Of post boards, whose ranks are threads of a process or processes of a machine.
inline constexpr std::string_view kThreadBackend = "threads", kMemoryBackend = "memory";

enum class BackendLibrary { nccl, gloo, post_board, other };

inline BackendLibrary library_of(const c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  if (name == kNcclBackend) return BackendLibrary::nccl;
  if (name == kGlooBackend) return BackendLibrary::gloo;
  const bool board = name == kThreadBackend || name == kMemoryBackend;
  return board ? BackendLibrary::post_board : BackendLibrary::other;
}

// Sums over ranks are then made while they are read (rank_order_sum.h).
inline bool ranks_read_each_other(const c10d::Backend& backend) {
  return library_of(backend) == BackendLibrary::post_board;
}

}  // namespace trireme
