#include "trireme/base/machine_identity.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "trireme/base/error.h"

namespace trireme {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::string read_by_text(int rank, int ranks) {
  return ranks > 1 ? cat(" (read by rank ", rank, " on ", host_name(), ")") : "";
}

std::string boot_id() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  return text;
}

std::string machine_with_namespaces(std::initializer_list<const char*> kinds) {
  std::string identity = boot_id();
  for (const char* kind : kinds) {
    std::error_code unread;
    const auto space = std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind, unread);
    if (identity.empty() || unread) return {};
    identity += " " + space.string();
  }
  return identity;
}

std::string state_and_numbers(int64_t process) {
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), text);
  // The process name may contain spaces and brackets: the state follows the last bracket.
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text.size() < name_end + 2 ? "" : text.substr(name_end + 2);
}

int64_t start_ticks(int64_t process) {
  std::istringstream fields(state_and_numbers(process));  // from field 3 on
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  int64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

}  // namespace trireme
