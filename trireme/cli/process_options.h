// What a command is told about this process and its ranks, beside what it computes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trireme/cli/option_parser.h"
#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"

namespace trireme {

// Far beyond the cores of any machine: a pool of thousands of threads fails without a message.
constexpr int64_t kMostThreads = 1024;

enum class DeviceChoice { automatic, cpu, cuda };
constexpr auto enum_names(DeviceChoice) {
  using enum DeviceChoice;
  return std::to_array<EnumName<DeviceChoice>>({{automatic, "auto"}, {cpu, "cpu"}, {cuda, "cuda"}});
}

// CUDA devices that this process and this build can use.
int cuda_devices();

struct ProcessOptions {
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // 0: OMP_NUM_THREADS, else the machine's cores over its ranks
  int64_t ddp_timeout_seconds = 1800;
  ExchangeBackend ddp_backend = ExchangeBackend::automatic;
  std::optional<int64_t> sp;  // ulysses x ring

  void list(OptionList& list);
  void list_device(OptionList& list);  // device and threads
  void list_ranks(OptionList& list);   // how ranks wait and exchange
  std::chrono::milliseconds timeout() const { return std::chrono::seconds(ddp_timeout_seconds); }

  // Sets this process's number of threads, and picks its device. Throws ConfigError: a device that is not
  // there, too little host memory for the ranks of this machine.
  void prepare(EngineOptions& engine, const RankIdentity& identity) const;
  // Ulysses and ring degrees from --sp and what was given of both; --sp alone looks at the model's heads and
  // at the run's ranks on one machine. Throws ConfigError where they contradict each other.
  void share_sequence(EngineOptions& engine, const OptionParser& parser, int machine_ranks,
                      const std::filesystem::path& model_dir) const;
};

// Ranks that share a sample, as far as values are given.
int64_t sharing_ranks(const OptionParser& parser);
// Throws ConfigError, which names what gave their number and ends with `other_way`: the run's ranks cannot be divided
// into groups of so many. `ranks_flag`: of the command, which says how many ranks there are; empty: a launcher does.
void check_sharing_ranks(const OptionParser& parser, int ranks, const std::string& other_way = "",
                         const std::string& ranks_flag = "");

// What to tell the user where ranks of one Ulysses group are on several machines; nothing where none is.
std::optional<std::string> crossing_warning(int ulysses, const World& world);

// Limits what this process takes of the host's memory to a rank's share. One rank of a machine warns on
// stderr where offload to disk would go to a file system in memory.
void prepare_host_memory(const RankIdentity& identity, const EngineOptions& options);

// Joins the run that the environment describes, with the host's memory prepared, and binds a rank that
// computes on a CPU to its share of the cores. Rank 0 warns where others may join the run.
std::unique_ptr<World> join_run(const RankIdentity& identity, const EngineOptions& options,
                                const ProcessOptions& process);

}  // namespace trireme
