// The flags that say how a model is computed, shared by train, eval and verify, and this process's place in
// the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "trireme/cli/option_parser.h"
#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/sequence_degrees.h"

namespace trireme {

struct EngineFlags {
  std::string device = "auto";
  std::string attention = "auto";
  std::string recompute = "auto";
  int64_t memory_budget = 0;      // bytes
  int64_t host_memory_limit = 0;  // bytes
  int64_t checkpoint_every = 1;
  double keep_fraction = 1;
  int64_t sp = 0;  // 0: ulysses x ring
  int64_t ulysses = 1;
  int64_t ring = 1;
  std::string ring_method = "ring";
  int64_t head_chunks = 1;
  int64_t sparse_block_tokens = 0;
  int64_t sparse_local_blocks = 1;
  int64_t sparse_global_blocks = 0;
  int64_t sparse_stride_blocks = 0;
  bool strict_divisible = false;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
  int64_t zero = 0;
  std::string offload_params = "none";
  std::string offload_activations = "none";
  std::filesystem::path offload_dir;
  int64_t offload_limit = 0;   // bytes
  int64_t threads = 0;         // 0: OMP_NUM_THREADS, else the machine's cores over its ranks
  int64_t ddp_timeout = 1800;  // seconds

  void declare(OptionParser& parser);
  // Of --sp, --ulysses and --ring; --sp alone looks at the model's heads and at the run's ranks on one machine. Throws
  // ConfigError where they contradict each other.
  SequenceDegrees degrees(const OptionParser& parser, int machine_ranks,
                          const std::filesystem::path& model_dir) const;
  // Sets this process's number of threads, and picks its device. Throws ConfigError for devices that are not
  // there.
  // The degrees are 1; see set_degrees.
  EngineOptions resolve(const RankPlace& place) const;
  // --ddp_timeout. Throws ConfigError beyond 1 second to 30 days.
  std::chrono::milliseconds timeout() const;
};

void set_degrees(EngineOptions& options, const SequenceDegrees& degrees);

// Joins the run that the environment describes. One rank of a machine warns on stderr where offload to disk would go to
// a file system in memory; rank 0 warns where others may join the run.
std::unique_ptr<World> join_run(const RankPlace& place, const EngineOptions& options,
                                std::chrono::milliseconds timeout);

}  // namespace trireme
