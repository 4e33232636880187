#include "trireme/launch/host_slots.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <sstream>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/input_file.h"
#include "trireme/base/joined.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/split.h"

namespace trireme {
namespace {

constexpr int64_t kLargestHostfile_bytes = 16 << 20;
constexpr int kMostSlots = 4096;

// A whole number from 0 to kMostSlots; below 0: the text is none.
int slot_number(const std::string& text) {
  const int value = parse_whole<int>(text).value_or(-1);
  return value <= kMostSlots ? value : -1;
}

std::string names_of(const std::vector<HostSlots>& hosts) {
  constexpr size_t kMost = 10;
  const std::string text =
      joined(std::span(hosts).first(std::min(hosts.size(), kMost)), ", ", &HostSlots::host);
  return hosts.size() > kMost ? cat(text, ", ... (", hosts.size(), " hosts)") : text;
}

// One HOST[:SLOT,...] of a filter, whose host is `hosts[index]`; no slots: all of them.
struct NodeSpec {
  size_t index = 0;
  std::vector<int> slots;
};

// USER@HOST names of a hostfile contain the separator of a filter, so a part that only begins such a name is
// joined to the next.
std::vector<NodeSpec> parse_filter(const std::string& filter, const std::vector<HostSlots>& hosts,
                                   const std::string& flag) {
  std::vector<NodeSpec> specs;
  const auto find = [&](const std::string& name) {
    return std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& one) { return one.host == name; });
  };
  std::string user;
  for (const std::string& part : split(filter, '@')) {
    const std::string text = user + part;
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    const auto host = find(name);
    const bool begins_a_name = std::any_of(hosts.begin(), hosts.end(), [&](const HostSlots& one) {
      return colon == std::string::npos && one.host.starts_with(text + "@");
    });
    if (host == hosts.end() && begins_a_name) {
      user = text + "@";
      continue;
    }
    user.clear();
    if (host == hosts.end())
      throw ConfigError(cat("launch: --", flag, " ", quotation(filter), ": there is no host '",
                            quotation(name), "' in the list of hosts; there are ", names_of(hosts)));
    NodeSpec spec{static_cast<size_t>(host - hosts.begin()), {}};
    if (colon != std::string::npos) {
      for (const std::string& word : split(text.substr(colon + 1), ',')) {
        const int slot = slot_number(word);
        if (!contains(host->slots, slot))
          throw ConfigError(cat("launch: --", flag, " ", quotation(filter), ": host '", name,
                                "' has no slot '", quotation(word), "'; it has ", slot_list(host->slots)));
        if (!contains(spec.slots, slot)) spec.slots.push_back(slot);
      }
    }
    specs.push_back(spec);
  }
  if (!user.empty())
    throw ConfigError(cat("launch: --", flag, " ", quotation(filter),
                          " ends within the name of a host; "
                          "there are ",
                          names_of(hosts)));
  return specs;
}

int total_slots(const std::vector<HostSlots>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const HostSlots& one) {
    return sum + static_cast<int>(one.slots.size());
  });
}

// --num_gpus counts the GPUs of each machine, and people give it those of the run.
[[noreturn]] void refuse_num_gpus(int asked, const std::vector<HostSlots>& hosts, const HostSlots& small,
                                  bool from_file) {
  const int there = static_cast<int>(small.slots.size());
  const int machines = (asked + there - 1) / there;
  std::string text = cat("launch: --num_gpus ", asked, " is the number of GPUs of each machine, and ",
                         from_file ? cat("host '", small.host, "' has slots=") : std::string("this one has "),
                         there, "; ", asked, " GPUs are ", machines, " machines of ", there, ": ");
  if (from_file && total_slots(hosts) >= asked)
    text += cat("leave --num_gpus out; --hostfile has ", hosts.size(),
                " hosts, of which --num_nodes N takes "
                "the first N");
  else
    text +=
        cat("list them in a file, one line 'HOST slots=", there, "' for each, and give --hostfile FILE ",
            "without --num_gpus; or --num_gpus ", there, " for ", from_file ? "each host" : "this machine");
  throw ConfigError(text);
}

}  // namespace

std::string slot_list(const std::vector<int>& slots) {
  return joined(slots, ",");
}

bool chooses_hosts(const HostOptions& options) {
  return !options.hostfile.empty() || !options.include.empty() || !options.exclude.empty() ||
         options.num_nodes || options.num_gpus;
}

std::vector<HostSlots> parse_hostfile(const std::string& text, const std::string& origin) {
  std::vector<HostSlots> hosts;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line);
    std::string host, slots;
    if (!(words >> host) || host.starts_with('#')) continue;
    words >> slots;
    const int count = slots.starts_with("slots=") ? slot_number(slots.substr(6)) : -1;
    // A leading hyphen would be an option of ssh.
    if (count < 1 || host.starts_with('-'))
      throw ConfigError(cat("launch: ", origin, ", line ", number, " is '", quotation(line),
                            "'; expected HOST slots=N, such as: node1 slots=8"));
    const auto same = [&](const HostSlots& one) { return one.host == host; };
    if (std::any_of(hosts.begin(), hosts.end(), same))
      throw ConfigError(cat("launch: ", origin, ", line ", number, " names host '", quotation(host),
                            "' a second time; give one line with all of its slots"));
    hosts.push_back({host, std::vector<int>(static_cast<size_t>(count))});
    std::iota(hosts.back().slots.begin(), hosts.back().slots.end(), 0);
  }
  if (hosts.empty())
    throw ConfigError(cat("launch: ", origin, " names no host; expected lines such as: node1 slots=8"));
  return hosts;
}

std::vector<HostSlots> filter_hosts(std::vector<HostSlots> hosts, const std::string& include,
                                    const std::string& exclude) {
  if (!include.empty() && !exclude.empty())
    throw ConfigError("launch: --include and --exclude exclude each other; give one of them");
  if (include.empty() && exclude.empty()) return hosts;
  const bool including = !include.empty();
  const std::vector<NodeSpec> specs =
      parse_filter(including ? include : exclude, hosts, including ? "include" : "exclude");
  std::vector<HostSlots> chosen = hosts;
  if (including)
    for (HostSlots& host : chosen) host.slots.clear();
  for (const NodeSpec& spec : specs) {
    std::vector<int>& slots = chosen[spec.index].slots;
    if (including)
      slots = spec.slots.empty() ? hosts[spec.index].slots : spec.slots;  // the last word on a host counts
    else if (spec.slots.empty())
      slots.clear();
    else
      std::erase_if(slots, [&](int slot) { return contains(spec.slots, slot); });
  }
  std::erase_if(chosen, [](const HostSlots& host) { return host.slots.empty(); });
  if (chosen.empty()) throw ConfigError(cat("launch: --exclude ", quotation(exclude), " leaves no slot"));
  return chosen;
}

std::vector<HostSlots> choose_hosts(const HostOptions& options, int machine_gpus) {
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  if (filtered && (options.num_nodes || options.num_gpus))
    throw ConfigError(
        "launch: --num_nodes and --num_gpus cannot stand beside --include or --exclude, which name hosts and "
        "slots themselves");
  const bool from_file = !options.hostfile.empty();
  if (!from_file && options.num_nodes && *options.num_nodes > 1)
    throw ConfigError(cat("launch: --num_nodes ", *options.num_nodes,
                          " needs --hostfile FILE, which names the machines: lines 'HOST slots=8'"));
  if (!from_file && machine_gpus == 0)
    throw ConfigError(
        "launch: --num_nodes, --num_gpus, --include and --exclude choose GPUs, and this machine has none "
        "that this build "
        "can use (trireme info); --nproc_per_node N starts N ranks on the CPU");
  std::vector<HostSlots> hosts;
  if (from_file) {
    hosts = parse_hostfile(InputFile(options.hostfile, "a list of hosts").whole(kLargestHostfile_bytes),
                           options.hostfile);
  } else {
    hosts = {{"localhost", std::vector<int>(static_cast<size_t>(machine_gpus))}};
    std::iota(hosts[0].slots.begin(), hosts[0].slots.end(), 0);
  }
  hosts = filter_hosts(std::move(hosts), options.include, options.exclude);
  if (options.num_nodes) {
    if (*options.num_nodes > static_cast<int>(hosts.size()))
      throw ConfigError(cat("launch: --num_nodes is ", *options.num_nodes, ", and ", options.hostfile,
                            " has ", hosts.size(), " hosts: ", names_of(hosts)));
    hosts.resize(static_cast<size_t>(*options.num_nodes));
  }
  if (options.num_gpus) {
    for (HostSlots& host : hosts) {
      if (*options.num_gpus > static_cast<int>(host.slots.size()))
        refuse_num_gpus(*options.num_gpus, hosts, host, from_file);
      host.slots.resize(static_cast<size_t>(*options.num_gpus));
    }
  }
  return hosts;
}

}  // namespace trireme
