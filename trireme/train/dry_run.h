// --dry_run: shows that a run's memory fits, in place of the run. Two optimizer steps of the run's engine at
// its fullest micro-batch, where each query sees the nearest keys alone (kernels/nearest_keys.h): the same
// buffers in a small part of the time. Tokens are synthetic, and nothing is read but the model, nothing
// written but what is offloaded to a disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/device/memory_category.h"
#include "trireme/train/train_options.h"

namespace trireme {

struct DryRun {
  struct Rank {
    int64_t tensors_bytes = 0;       // the most at once, of the device
    int64_t forecast_bytes = 0;      // of them
    int64_t host_tensors_bytes = 0;  // beside a GPU
    int64_t host_forecast_bytes = 0;
    int64_t process_bytes = 0;  // most: resident on the CPU, allocated on a GPU (device/peak_memory.h)
    // What calls of long documents would add (kernels/long_documents.h), by the forecast: none was made.
    int64_t documents_alone_bytes = 0;
    int64_t room_bytes = 0;  // for the process (memory_room_bytes)
    double share() const {
      return static_cast<double>(process_bytes + documents_alone_bytes) / static_cast<double>(room_bytes);
    }
  };
  std::vector<Rank> ranks;
  double allowed_share = 0;  // of its room that a rank may use (allowed_memory_share)
  MemoryBytes peak;          // of this rank's tensors, each category by itself
  bool on_gpu = false;
  int64_t sequence_tokens = 0;
  int64_t nearest_keys = 0;           // that each query saw; 0: all
  int64_t samples = 0;                // of a micro-batch
  int64_t micro_batches = 0;          // of a step
  int64_t updates = 0;                // 2; fewer where fp16's loss scale fell at every step
  std::string engine;                 // description
  std::vector<int> stages_not_shown;  // from 1: those of other engines

  const Rank& fullest() const;
  // A line a rank, the verdict, and what these steps cannot show. Ends in a newline.
  std::string text() const;
};

// 0: every key, on a GPU where FlashAttention-2 does not serve. The others' memory for windows is not that for
// whole samples, or they know no windows.
int64_t nearest_keys_of_dry_run(const EngineOptions& options, const ModelConfig& config);

// In the stage of the most tokens a micro-batch: what a step of one engine holds grows with them. Of a step's
// micro-batches two are run: those after them find the same. Throws ConfigError: options that cannot stand
// together; out of memory, with advice. Collective; every rank has the same but for `peak`.
DryRun dry_run(World& world, const TrainOptions& options);

}  // namespace trireme
