// The hosts of a run and their slots (GPUs), with the file and the filters of DeepSpeed's launcher:
//
//   --hostfile          lines "HOST slots=8", in the order of ranks; "#" begins a comment line
//   --include, --exclude  HOST[:SLOT[,SLOT...]][@HOST...]: only these, or all but these
//   --num_nodes, --num_gpus  the first so many hosts, the first so many slots of each
//
// (deepspeed/launcher/runner.py: fetch_hostfile, parse_resource_filter, main.) Hosts keep the file's order;
// an included host has its slots in the order in which they are named.
#pragma once

#include <string>
#include <vector>

#include "trireme/launch/launch.h"

namespace trireme {

struct HostSlots {
  std::string host;        // a name, address or USER@HOST, as ssh takes it
  std::vector<int> slots;  // GPU numbers, from 0
};

// `text` of the file `origin`. Throws ConfigError that names the line.
std::vector<HostSlots> parse_hostfile(const std::string& text, const std::string& origin);

// Throws ConfigError for both filters, an unknown host or slot, and where nothing is left.
std::vector<HostSlots> filter_hosts(std::vector<HostSlots> hosts, const std::string& include,
                                    const std::string& exclude);

// The hosts of a launch. Without --hostfile, localhost with `machine_gpus` slots. Throws ConfigError for
// options that contradict each other or the hosts; DataError for a file that cannot be read.
std::vector<HostSlots> choose_hosts(const HostOptions& options, int machine_gpus);

// Whether the launch is to choose hosts or GPUs: one of the options above is given.
bool chooses_hosts(const HostOptions& options);

// "0,1,3"
std::string slot_list(const std::vector<int>& slots);

}  // namespace trireme
