#include "trireme/cli/process_options.h"

#include <iostream>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/comm/gpu_of_rank.h"
#include "trireme/device/core_binding.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/gpu_identity.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/engine/sequence_degrees.h"
#include "trireme/memory/memory_file_system.h"
#include "trireme/model/model_config.h"

namespace trireme {
namespace {

at::Device pick_device(DeviceChoice choice, const RankIdentity& identity) {
  const int devices = choice == DeviceChoice::cpu ? 0 : cuda_devices();
  if (devices > 0)
    return {at::kCUDA,
            static_cast<c10::DeviceIndex>(choose_gpu(devices, identity.local_rank, identity.local_size))};
  if (choice == DeviceChoice::cuda)
    throw ConfigError(cat("--device cuda: no GPU can be used: ", why_no_gpu(), "; use --device cpu"));
  const bool is_lost = choice == DeviceChoice::automatic && is_there("/dev/nvidia0");
  if (is_lost && identity.local_rank == 0)
    std::cerr << "trireme: warning: this machine has a GPU, and none can be used: " << why_no_gpu()
              << "; computing on the CPU; --device cpu says that this is meant" << std::endl;
  return at::kCPU;
}

int count_threads(int64_t asked, const RankIdentity& identity) {
  if (asked > 0) return static_cast<int>(asked);
  const int cores = cores_of_rank(identity.local_size);
  const auto set = environment_integer("OMP_NUM_THREADS");
  if (!set || *set <= 0) return cores;
  // torchrun sets 1 where the user set nothing.
  if (*set == 1 && cores > 1 && identity.local_rank == 0 && environment("TORCHELASTIC_RUN_ID"))
    std::cerr << "trireme: note: OMP_NUM_THREADS is 1, torchrun's default, so each rank computes with one "
                 "thread; --threads "
              << cores << " gives it its cores" << std::endl;
  return static_cast<int>(*set);
}

}  // namespace

int cuda_devices() {
  if (!at::hasCUDA()) return 0;
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
}

void ProcessOptions::list_device(OptionList& list) {
  list.group(OptionGroup::process);
  list.choice("device", device, "auto: on a GPU if this build has CUDA and sees one, else on the CPU")
      .not_in_config();
  list.count("threads", threads, from_to(0, kMostThreads),
             "threads of this process; 0: OMP_NUM_THREADS, else the cores of the machine over its ranks")
      .not_in_config();
}

void ProcessOptions::list_ranks(OptionList& list) {
  list.group(OptionGroup::process);
  list.count("ddp_timeout", ddp_timeout_seconds, from_to(1, 30 * 24 * 3600),
             "seconds to wait for another rank, up to 30 days")
      .not_in_config();
  list.choice("ddp_backend", ddp_backend,
              "how ranks exchange; auto: by NCCL on GPUs; on CPUs through memory where ranks can read each "
              "other's, else by Gloo")
      .not_in_config();
}

void ProcessOptions::list(OptionList& list) {
  list_device(list);
  list_ranks(list);
  list.group(OptionGroup::sequence);
  list.count("sp", sp, from_to(1, kMostRanks),
             "ranks that share one sequence, by Ulysses as far as heads and machine allow and a ring for the "
             "rest")
      .not_in_config();
}

void ProcessOptions::prepare(EngineOptions& engine, const RankIdentity& identity) const {
  at::set_num_threads(count_threads(threads, identity));
  engine.device = pick_device(device, identity);
  const int64_t limit_bytes = engine.host_memory_limit_bytes;
  constexpr int64_t kLeastHostMemory_bytes = int64_t{64} << 20;
  if (limit_bytes != 0 && limit_bytes / identity.local_size < kLeastHostMemory_bytes)
    throw ConfigError(cat("--host_memory_limit is ", limit_bytes, " bytes for ", identity.local_size,
                          " ranks on this machine; expected 0, or 64m or more for each, such as 200g"));
}

void ProcessOptions::share_sequence(EngineOptions& engine, const OptionParser& parser, int machine_ranks,
                                    const std::filesystem::path& model_dir) const {
  if (!sp) return;
  const auto degree = static_cast<int>(*sp);
  const bool given_ulysses = parser.given("ulysses"), given_ring = parser.given("ring");
  if (!given_ulysses && !given_ring) {
    const SequenceDegrees chosen =
        choose_degrees(degree, read_model_config(model_dir).num_attention_heads, machine_ranks);
    engine.ulysses = chosen.ulysses;
    engine.ring = chosen.ring;
    return;
  }
  const int64_t given = int64_t{engine.ulysses} * engine.ring;
  if (degree % given != 0 || (given_ulysses && given_ring && degree != given))
    throw ConfigError(cat("--sp ", degree, " contradicts",
                          given_ulysses ? cat(" --ulysses ", engine.ulysses) : std::string(),
                          given_ring ? cat(" --ring ", engine.ring) : std::string(),
                          ": --sp is their product; leave one of them out"));
  if (!given_ulysses) engine.ulysses = degree / engine.ring;
  if (!given_ring) engine.ring = degree / engine.ulysses;
}

int64_t sharing_ranks(const OptionParser& parser) {
  const auto number = [&](const char* option) { return parser.find(option).read().get<int64_t>(); };
  return parser.given("sp") ? number("sp") : number("ulysses") * number("ring");
}

void check_sharing_ranks(const OptionParser& parser, int ranks, const std::string& other_way,
                         const std::string& ranks_flag) {
  const int64_t degree = sharing_ranks(parser);
  if (ranks % degree == 0) return;
  std::string source = parser.source_of("sp");
  for (const char* option : {"ulysses", "ring"})
    if (!parser.given("sp") && parser.find(option).read() != 1)
      source += cat(source.empty() ? "" : " x ", parser.source_of(option));
  throw ConfigError(cat(source, ": ", degree, " ranks are to share a sample, and the run has ", ranks,
                        ranks == 1 ? " rank" : " ranks", "; expected a multiple of ", degree, ": ",
                        ranks_flag.empty()
                            ? cat("start it with trireme launch --nproc_per_node ", degree, " -- ...")
                            : cat("give ", ranks_flag, " ", degree),
                        other_way));
}

std::optional<std::string> crossing_warning(int ulysses, const World& world) {
  const int ranks = world.common_machine_ranks();
  if (ranks % ulysses == 0) return std::nullopt;
  return cat("the ", ulysses, " ranks of --ulysses ", ulysses,
             " do not all lie on one machine: machines have ",
             ranks == 1 ? std::string("1 rank, or numbers of ranks without a common divisor")
                        : cat("multiples of ", ranks, " ranks"),
             "; each exchange goes over the network. --sp ", ulysses,
             " shares by Ulysses inside machines, and by a ring between them");
}

void prepare_host_memory(const RankIdentity& identity, const EngineOptions& options) {
  if (identity.local_rank == 0)
    if (const auto warning = memory_for_disk_warning(options.offload))
      std::cerr << "trireme: warning: " << *warning << std::endl;
  // Shared by the ranks of this machine; a twentieth is for what is not a tensor.
  limit_host_memory(host_memory_of_rank_bytes(options.host_memory_limit_bytes, identity.local_size) / 20 *
                    19);
}

std::unique_ptr<World> join_run(const RankIdentity& identity, const EngineOptions& options,
                                const ProcessOptions& process) {
  // Before threads of exchanges begin.
  if (options.device.is_cpu())
    bind_to_share_of_cores(identity.local_rank, identity.local_size, at::get_num_threads());
  else if (identity.local_size > 1)
    bind_near(gpu_identity(options.device).bus, at::get_num_threads());
  prepare_host_memory(identity, options);
  const auto end_process = [](const CommError& error) {
    // As main would; not by its path, for its thread waits on a device.
    std::cerr << cat("trireme: ", error.kind(), ": ", error.what(), "\n") << std::flush;
    ::_exit(error.exit_code());
  };
  if (const auto warning = open_door_warning(identity))
    std::cerr << "trireme: warning: " << *warning << std::endl;
  return join_world(identity, {.device = options.device,
                               .timeout = process.timeout(),
                               .backend = process.ddp_backend,
                               .on_lost = end_process,
                               .activity = std::make_shared<RankActivity>(RankActivity::from_environment())});
}

}  // namespace trireme
