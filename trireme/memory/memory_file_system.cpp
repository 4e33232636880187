#include "trireme/memory/memory_file_system.h"

#include <cstdint>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "trireme/base/error.h"

namespace trireme {

std::optional<std::string> memory_file_system(const std::filesystem::path& folder) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) return std::nullopt;
  // The field is signed and 32 bits wide on some machines, where ramfs's number is negative.
  const auto type = static_cast<uint32_t>(system.f_type);
  if (type == TMPFS_MAGIC) return "tmpfs";
  if (type == RAMFS_MAGIC) return "ramfs";
  return std::nullopt;
}

std::optional<std::string> memory_for_disk_warning(const OffloadOptions& options) {
  if (!uses_disk(options)) return std::nullopt;
  const auto system = memory_file_system(options.folder);
  if (!system) return std::nullopt;
  return cat("--offload_dir ", options.folder.string(), " lies on ", *system,
             ", a file system in memory: what is offloaded to disk there takes as much memory as before. "
             "Give a folder on a disk");
}

}  // namespace trireme
