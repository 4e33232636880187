// Where a part of the training state lies while no computation reads it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "trireme/base/enum_names.h"

namespace trireme {

enum class Offload {
  none,  // on the device
  cpu,   // in the host's memory (pinned on a GPU; on a CPU this is where it lies anyway)
  disk,  // in a file without a name: gone when the process ends, however it ends
};
constexpr auto enum_names(Offload) {
  using enum Offload;
  return std::to_array<EnumName<Offload>>({{none, "none"}, {cpu, "cpu"}, {disk, "disk"}});
}

struct OffloadOptions {
  Offload parameters = Offload::none;   // the values that compute reads, this rank's shard
  Offload optimizer = Offload::none;    // Adam's moments, and fp32 masters that are not those values
  Offload activations = Offload::none;  // the tensors that forward saves for backward
  std::filesystem::path folder = {};    // for disk
  int64_t limit_bytes = 0;              // of this rank's files on disk; 0: the disk's size
  bool operator==(const OffloadOptions&) const = default;
};

inline bool uses_disk(const OffloadOptions& options) {
  return options.parameters == Offload::disk || options.optimizer == Offload::disk ||
         options.activations == Offload::disk;
}

// What says where and how much, for options that offload nothing to disk.
inline void leave_out_disk(OffloadOptions& options) {
  options.folder.clear();
  options.limit_bytes = 0;
}

}  // namespace trireme
