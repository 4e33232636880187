#include "trireme/cli/engine_flags.h"

#include <algorithm>
#include <iostream>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/comm/gpu_of_rank.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/device/processor.h"
#include "trireme/memory/memory_file_system.h"
#include "trireme/model/model_config.h"

namespace trireme {
namespace {

int cuda_devices() {
  if (!at::hasCUDA()) return 0;
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
}

at::Device pick_device(const std::string& name, const RankPlace& place) {
  const int devices = name == "cpu" ? 0 : cuda_devices();
  if (name == "cpu" || (name == "auto" && devices == 0)) return at::kCPU;
  if (devices == 0)
    throw ConfigError(
        "--device cuda: this build or machine has no CUDA device (see trireme info); use --device cpu");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(choose_gpu(devices, place.local_rank, place.local_size))};
}

int count_threads(int64_t asked, const RankPlace& place) {
  if (asked < 0) throw ConfigError(cat("--threads is ", asked, "; expected 1 or more"));
  if (asked > 0) return static_cast<int>(asked);
  if (const auto set = environment_integer("OMP_NUM_THREADS"); set && *set > 0) return static_cast<int>(*set);
  return std::max(1, cpu_cores() / std::max(1, place.local_size));
}

}  // namespace

void EngineFlags::declare(OptionParser& parser) {
  parser.choice("device", device, {"auto", "cpu", "cuda"}, "where to compute");
  parser.choice("attention", attention, attention_kernel_names(), "attention kernel");
  parser.choice(
      "recompute", recompute, {"auto", "none", "keep_attention", "full"},
      "what backward computes again instead of keeping it; auto: keep_attention on as many layers as fit, "
      "the others full");
  parser.count("memory_budget", memory_budget,
               "bytes that --recompute auto plans with on each rank; takes 60g; 0: by what is free");
  parser.count(
      "host_memory_limit", host_memory_limit,
      "bytes of host memory that the ranks of this machine may hold together; takes 200g; 0: by what the "
      "machine and its limits say, which is too little where its memory grows on demand");
  parser.count("checkpoint_every", checkpoint_every, "layers between two whose input is kept for backward");
  parser.real("keep_fraction", keep_fraction,
              "share of the layers that keep what --recompute says; the others their input alone");
  parser.count("zero", zero,
               "shard over all ranks: 1 the optimizer's state, 2 also gradients, 3 also parameters");
  parser.choice("offload_params", offload_params, {"none", "cpu", "disk"},
                "where parameter shards lie while no layer uses them");
  parser.choice("offload_activations", offload_activations, {"none", "cpu", "disk"},
                "where what forward keeps lies until backward");
  parser.path("offload_dir", offload_dir, "folder on a fast local disk, for offload to disk");
  parser.count("offload_limit", offload_limit,
               "bytes on disk that a rank may use; takes 200g; 0: what there is");
  parser.count(
      "sp", sp,
      "ranks that share one sequence, by Ulysses as far as heads and machine allow and a ring for the rest");
  parser.count("ulysses", ulysses, "ranks that trade sequence for heads; the others take other samples");
  parser.count("ring", ring,
               "ring places of --ulysses ranks each: more ranks a sequence than there are heads");
  parser.choice("ring_method", ring_method, {"ring", "gather"},
                "keys and values travel round the ring, or are gathered at once (more memory, one exchange)");
  parser.count("head_chunks", head_chunks,
               "head chunks in which Ulysses exchanges and attends: the next is exchanged while one "
               "computes; memory falls");
  parser.count("sparse_block_tokens", sparse_block_tokens,
               "block-sparse attention in blocks of so many tokens, a multiple of 64; 0: dense");
  parser.count("sparse_local_blocks", sparse_local_blocks, "blocks that a block sees, counted from itself");
  parser.count("sparse_global_blocks", sparse_global_blocks, "first blocks of the sequence, which all see");
  parser.count("sparse_stride_blocks", sparse_stride_blocks,
               "every so many-th block is seen by all; 0: none");
  parser.flag("strict_divisible", strict_divisible, "refuse lengths that leave ranks with unequal shares");
  parser.count("tile_tokens", tile_tokens, "tokens of one tile of a layer's token-wise parts; 0: by rule");
  parser.count("logits_tile_tokens", logits_tile_tokens, "tokens of one tile of the head; 0: by rule");
  parser.count("threads", threads, "threads of this process; 0: OMP_NUM_THREADS, else cores / ranks here");
  parser.count("ddp_timeout", ddp_timeout, "seconds to wait for another rank");
}

SequenceDegrees EngineFlags::degrees(const OptionParser& parser, int machine_ranks,
                                     const std::filesystem::path& model_dir) const {
  if (ulysses < 1) throw ConfigError(cat("--ulysses is ", ulysses, "; expected 1 or more"));
  if (ring < 1) throw ConfigError(cat("--ring is ", ring, "; expected 1 or more"));
  constexpr int64_t kMost = 1 << 20;
  for (const auto& [flag, value] : {std::pair("sp", sp), {"ulysses", ulysses}, {"ring", ring}})
    if (value > kMost) throw ConfigError(cat("--", flag, " is ", value, "; expected at most ", kMost));
  const auto degree = [](int64_t value) { return static_cast<int>(value); };
  if (!parser.given("sp")) return {degree(ulysses), degree(ring)};
  if (sp < 1) throw ConfigError(cat("--sp is ", sp, "; expected 1 or more"));
  const bool given_ulysses = parser.given("ulysses"), given_ring = parser.given("ring");
  if (!given_ulysses && !given_ring)
    return choose_degrees(degree(sp), read_model_config(model_dir).num_attention_heads, machine_ranks);
  const int64_t given = (given_ulysses ? ulysses : 1) * (given_ring ? ring : 1);
  if (sp % given != 0 || (given_ulysses && given_ring && sp != given))
    throw ConfigError(cat("--sp ", sp, " contradicts",
                          given_ulysses ? cat(" --ulysses ", ulysses) : std::string(),
                          given_ring ? cat(" --ring ", ring) : std::string(),
                          ": --sp is their product; leave one of them out"));
  return {degree(given_ulysses ? ulysses : sp / ring), degree(given_ring ? ring : sp / ulysses)};
}

void set_degrees(EngineOptions& options, const SequenceDegrees& degrees) {
  options.ulysses = degrees.ulysses;
  options.ring = degrees.ring;
}

EngineOptions EngineFlags::resolve(const RankPlace& place) const {
  static_cast<void>(timeout());
  at::set_num_threads(count_threads(threads, place));
  EngineOptions options;
  options.device = pick_device(device, place);
  options.attention = parse_attention_kernel(attention);
  options.recompute = parse_recompute(recompute);
  options.memory_budget_bytes = memory_budget;
  constexpr int64_t kLeastHostMemory_bytes = int64_t{64} << 20;
  if (host_memory_limit != 0 && host_memory_limit / place.local_size < kLeastHostMemory_bytes)
    throw ConfigError(cat("--host_memory_limit is ", host_memory_limit, " bytes for ", place.local_size,
                          " ranks on this machine; expected 0, or 64m or more for each, such as 200g"));
  options.host_memory_limit_bytes = host_memory_limit;
  options.checkpoint_every = checkpoint_every;
  options.keep_fraction = keep_fraction;
  if (zero > 3) throw ConfigError(cat("--zero is ", zero, "; expected 0, 1, 2 or 3"));
  options.zero = static_cast<ZeroStage>(zero);
  options.offload.parameters = parse_offload("offload_params", offload_params);
  options.offload.activations = parse_offload("offload_activations", offload_activations);
  options.offload.folder = offload_dir;
  options.offload.limit_bytes = offload_limit;
  options.ring_method = parse_ring_method(ring_method);
  if (head_chunks < 1 || head_chunks > (1 << 20))
    throw ConfigError(cat("--head_chunks is ", head_chunks, "; expected 1 to the query heads of a rank"));
  options.head_chunks = static_cast<int>(head_chunks);
  options.sparse = {sparse_block_tokens, sparse_local_blocks, sparse_global_blocks, sparse_stride_blocks};
  options.strict_divisible = strict_divisible;
  options.tile_tokens = tile_tokens;
  options.logits_tile_tokens = logits_tile_tokens;
  return options;
}

std::chrono::milliseconds EngineFlags::timeout() const {
  constexpr int64_t kMost_seconds = int64_t{30} * 24 * 3600;
  if (ddp_timeout < 1 || ddp_timeout > kMost_seconds)
    throw ConfigError(cat("--ddp_timeout is ", ddp_timeout, "; expected 1 to ", kMost_seconds,
                          " seconds, which are 30 days"));
  return std::chrono::seconds(ddp_timeout);
}

std::unique_ptr<World> join_run(const RankPlace& place, const EngineOptions& options,
                                std::chrono::milliseconds timeout) {
  if (place.local_rank == 0)
    if (const auto warning = memory_for_disk_warning(options.offload))
      std::cerr << "trireme: warning: " << *warning << std::endl;
  // Shared by the ranks of this machine; a twentieth is for what is not a tensor.
  const int64_t of_machine =
      options.host_memory_limit_bytes > 0 ? options.host_memory_limit_bytes : host_memory_limit_bytes();
  limit_host_memory(of_machine / std::max(1, place.local_size) / 20 * 19);
  const auto end_process = [](const CommError& error) {
    // As main would; not by its path, for its thread waits on a device.
    std::cerr << cat("trireme: ", error.kind(), ": ", error.what(), "\n") << std::flush;
    ::_exit(error.exit_code());
  };
  if (const auto warning = open_door_warning(place))
    std::cerr << "trireme: warning: " << *warning << std::endl;
  return join_world(place, Transport::automatic, options.device, timeout, end_process,
                    std::make_shared<RankActivity>(RankActivity::from_environment()));
}

}  // namespace trireme
