#include "bench/incumbents/incumbent_memory.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/hardware_profile.h"

#include "bench/incumbents/incumbent_step.h"

namespace trireme {
namespace {

constexpr int64_t kLengthStep_tokens = 1000;

// DeepSpeed's rules (ulysses_sp.py, UlyssesSPAttentionHF.__init__).
void check_incumbent_run(const IncumbentRun& run) {
  const int64_t heads = run.model.heads, kv_heads = run.model.kv_heads, sharing = run.sequence_ranks;
  if (run.ranks < 1 || sharing < 1 || run.ranks % sharing != 0)
    throw ConfigError(cat("DeepSpeed's sequence ranks must divide its ranks; got ", sharing, " of ",
                          run.ranks, ". Choose a divisor of ", run.ranks, "."));
  if (heads % sharing != 0 || (kv_heads % sharing != 0 && sharing % kv_heads != 0))
    throw ConfigError(cat("DeepSpeed's Ulysses needs a degree that divides ", heads,
                          " heads and divides, or is a multiple of, ", kv_heads, " key/value heads; got ",
                          sharing, "."));
}

int64_t peak_device_bytes(const IncumbentRun& run) {
  IncumbentTrace trace;
  trace_incumbent_step(run, trace);
  return trace.memory().device_bytes() + incumbent_nccl_bytes(run);
}

// What the first all-to-all over 8 H100s of a machine took: "before: NV 1.06 GB, after: NV 4.34 GB"
// (github.com/NVIDIA/nccl/issues/1685). The most of it are the buffers of 7 peers.
constexpr int kMachineRanks = 8;
constexpr auto kFirstAllToAll_bytes = static_cast<int64_t>(3.28 * (int64_t{1} << 30));
// A communicator that gathers takes NVLS's buffers, 16 channels x 8 heads x 2 of 1 MiB (transport/nvls.cc
// ncclNvlsBufferSetup), or a ring's, 24 channels of 12 MiB (transport/generic.cc ncclTransportRingConnect):
// the smaller of the two is counted.
constexpr int64_t kGather_bytes = int64_t{256} << 20;

}  // namespace

int64_t incumbent_nccl_bytes(const IncumbentRun& run) {
  if (run.ranks == 1 || run.ranks > kMachineRanks) return 0;
  // The world's, where ArcticTraining gathers its metrics (metrics.py gather_object), and ZeRO's.
  int64_t bytes = 2 * kGather_bytes;
  // Ulysses' own (parallel_state_sp.py): position_ids are gathered, queries, keys and values are exchanged.
  if (run.sequence_ranks > 1)
    bytes +=
        kGather_bytes + kFirstAllToAll_bytes - (kMachineRanks - run.sequence_ranks) * kPeerBuffersOnGpu_bytes;
  return bytes;
}

IncumbentMemory incumbent_memory(const IncumbentRun& run) {
  check_incumbent_run(run);
  if (run.tokens < 1) throw ConfigError(cat("A sample has at least one token; got ", run.tokens, "."));
  IncumbentTrace trace;
  trace_incumbent_step(run, trace);
  IncumbentTrace again(trace.fullest_at());
  trace_incumbent_step(run, again);
  IncumbentMemory memory = again.memory();
  memory.nccl_bytes = incumbent_nccl_bytes(run);
  return memory;
}

int64_t incumbent_longest_tokens(IncumbentRun run, int64_t device_bytes) {
  check_incumbent_run(run);
  const auto fits = [&](int64_t steps) {
    run.tokens = steps * kLengthStep_tokens;
    return peak_device_bytes(run) <= device_bytes;
  };
  int64_t most = int64_t{1} << 40;
  if (run.policy.liger_kernels && run.policy.indices_32_bit)
    most = (int64_t{1} << 31) / std::max(run.model.hidden, run.model.heads * run.model.head_dim) *
           run.sequence_ranks / kLengthStep_tokens;
  int64_t fit = 0, beyond = 1;
  while (beyond <= most && fits(beyond)) {
    fit = beyond;
    beyond *= 2;
  }
  beyond = std::min(beyond, most + 1);
  while (beyond - fit > 1) {
    const int64_t middle = fit + (beyond - fit) / 2;
    (fits(middle) ? fit : beyond) = middle;
  }
  return fit * kLengthStep_tokens;
}

}  // namespace trireme
