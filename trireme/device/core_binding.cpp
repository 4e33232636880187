#include "trireme/device/core_binding.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sched.h>
#include <tuple>
#include <unistd.h>

#include "trireme/base/cpu_cores.h"
#include "trireme/base/error.h"
#include "trireme/base/lower_case.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/split.h"

namespace trireme {
namespace {

std::optional<cpu_set_t> processors_of(pid_t process) {
  cpu_set_t set;
  if (sched_getaffinity(process, sizeof(set), &set) != 0) return std::nullopt;
  return set;
}

// By its launcher, as far as can be told.
bool is_bound() {
  const auto allowed = processors_of(0), of_parent = processors_of(getppid());
  return !allowed || !of_parent || !CPU_EQUAL(&*allowed, &*of_parent);
}

// What the kernel does not tell is one package, whose processors are cores.
int topology_of(int processor, const char* name, int otherwise) {
  std::ifstream file(cat("/sys/devices/system/cpu/cpu", processor, "/topology/", name));
  int value = 0;
  return file >> value ? value : otherwise;
}

std::vector<Processor> processors_in(const cpu_set_t& set) {
  std::vector<Processor> processors;
  for (int number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(number, &set))
      processors.push_back(
          {number, topology_of(number, "physical_package_id", 0), topology_of(number, "core_id", number)});
  return processors;
}

bool bind_to(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : processors) CPU_SET(number, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace

std::vector<int> share_of_processors(std::vector<Processor> processors, int local_rank, int local_size) {
  std::ranges::sort(processors, {},
                    [](const Processor& one) { return std::tuple(one.package, one.core, one.number); });
  const auto edge = [&](int rank) {
    return processors.size() * static_cast<size_t>(rank) / static_cast<size_t>(local_size);
  };
  std::vector<int> share;
  for (size_t i = edge(local_rank); i < edge(local_rank + 1); ++i) share.push_back(processors[i].number);
  return share;
}

int cores_of_rank(int local_size) {
  return is_bound() ? cpu_cores() : std::max(1, cpu_cores() / std::max(1, local_size));
}

bool bind_to_share_of_cores(int local_rank, int local_size, int threads) {
  const auto allowed = processors_of(0);
  if (local_size <= 1 || !allowed || is_bound()) return false;
  if (CPU_COUNT(&*allowed) / local_size < std::max(1, threads)) return false;
  return bind_to(share_of_processors(processors_in(*allowed), local_rank, local_size));
}

std::vector<int> processors_of_list(std::string_view list) {
  std::vector<int> processors;
  for (const std::string& range : split(std::string(list), ',')) {
    const size_t dash = range.find('-');
    const auto first = parse_whole<int>(range.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_whole<int>(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= CPU_SETSIZE) return {};
    for (int number = *first; number <= *last; ++number) processors.push_back(number);
  }
  return processors;
}

bool bind_near(const std::string& bus, int threads, const std::filesystem::path& devices) {
  const auto allowed = processors_of(0);
  if (!allowed || is_bound()) return false;
  std::string list;
  // The kernel's names are of lower case.
  std::getline(std::ifstream(devices / lower_case(bus) / "local_cpulist"), list);
  std::vector<int> near = processors_of_list(list);
  std::erase_if(near, [&](int number) { return !CPU_ISSET(number, &*allowed); });
  const bool all = std::ssize(near) == CPU_COUNT(&*allowed);
  return !all && std::ssize(near) >= std::max(1, threads) && bind_to(near);
}

}  // namespace trireme
