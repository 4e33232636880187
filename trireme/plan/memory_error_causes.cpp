#include "trireme/plan/memory_error_causes.h"

#include <cmath>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/sequence_ranks.h"

namespace trireme {
namespace {

using CauseKind = MemoryErrorCauseKind;

constexpr int64_t kOne_GiB = int64_t{1} << 30;
constexpr const char* kExpandableSegments =
    "set PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.11 PYTORCH_CUDA_ALLOC_CONF, as 2.9 does "
    "not heed the new name); Trireme sets it itself";

// What other processes hold: listed, or what the device lacks beside this process. A context takes up to a
// GiB that a message without the process's bytes does not tell.
int64_t bytes_of_others(const MemoryError& error) {
  if (error.others) return *error.others;
  if (!error.capacity || !error.free) return 0;
  if (error.process) return *error.capacity - *error.free - *error.process;
  if (!error.allocated) return 0;
  return *error.capacity - *error.free - *error.allocated - error.unallocated.value_or(0) - kOne_GiB;
}

void add_device_causes(const MemoryError& error, std::vector<MemoryErrorCause>& causes) {
  if (error.asked && error.capacity && *error.asked > *error.capacity)
    causes.push_back({CauseKind::one_large_tensor,
                      cat("one tensor of ", format_bytes(*error.asked),
                          " was asked for, more than the device's ", format_bytes(*error.capacity)),
                      "no saving elsewhere helps: that tensor must not be made whole"});
  if (error.message.find("more than 1EB") != std::string::npos)
    causes.push_back({CauseKind::one_large_tensor,
                      "more than an exabyte was asked for: a size was read or computed wrongly",
                      "look for an earlier error, of another rank too"});
  if (error.unallocated && *error.unallocated > 0) {
    const int64_t kept = *error.unallocated;
    const bool enough = error.asked && kept >= *error.asked;
    if (enough || (error.capacity && kept > *error.capacity / 10))
      causes.push_back(
          {CauseKind::fragmentation,
           cat("fragmentation: PyTorch keeps ", format_bytes(kept), " that no tensor uses",
               enough ? cat(", more than the ", format_bytes(*error.asked), " that it was asked for")
                      : std::string()),
           kExpandableSegments});
  }
  if (const int64_t others = bytes_of_others(error); error.capacity && others > *error.capacity / 50)
    causes.push_back(
        {CauseKind::other_processes,
         cat("other processes hold about ", format_bytes(others), " of the device"),
         "end them (nvidia-smi names them): a rank of an earlier run, a notebook, another user"});
  if (error.allowed)
    causes.push_back({CauseKind::allowed_share,
                      cat("the process may take ", format_bytes(*error.allowed), " of the device"),
                      "torch.cuda.set_per_process_memory_fraction says so; leave it out"});
}

void add_causes_of_kind(const MemoryError& error, std::vector<MemoryErrorCause>& causes) {
  switch (error.kind) {
    case MemoryErrorKind::nccl:
    case MemoryErrorKind::gpu_library:
      causes.push_back({CauseKind::beside_the_tensors,
                        cat(error.kind == MemoryErrorKind::nccl ? "NCCL" : "a library of the GPU",
                            " found no memory for its buffers: tensors and what PyTorch keeps took all"),
                        "leave it 1 to 2 GiB: a set of changes below, or "
                        "torch.cuda.set_per_process_memory_fraction(0.95)"});
      return;
    case MemoryErrorKind::pinned_host:
      causes.push_back(
          {CauseKind::pinned_host,
           "host memory could not be pinned: what may be locked, or the host's memory, was at its end",
           "raise ulimit -l (and a container's shared memory), offload less, or, with DeepSpeed, "
           "leave pin_memory out"});
      return;
    case MemoryErrorKind::killed:
      causes.push_back(
          {CauseKind::host,
           cat("the rank was killed from outside, most likely by the host's kernel when its memory was full",
               error.process ? cat(" (it held ", format_bytes(*error.process), ")") : std::string()),
           "dmesg says whether; offload less to the host, or to a disk"});
      return;
    case MemoryErrorKind::host_allocator:
      causes.push_back(
          {CauseKind::host,
           cat("the host's memory was full",
               error.asked ? cat(" when ", format_bytes(*error.asked), " were asked for") : std::string()),
           "offload less to the host, or to a disk; look at what loads the model and the data whole "
           "on every rank"});
      return;
    case MemoryErrorKind::trireme:
      if (error.space == MemorySpace::host)
        causes.push_back(
            {CauseKind::host, "the host's memory was full", "offload less to the host, or to a disk"});
      return;
    case MemoryErrorKind::torch_allocator:
    case MemoryErrorKind::cuda_call:
      return;
  }
}

// Tensors that other programs make whole and Trireme does not, by their bytes.
struct WholeTensor {
  double bytes;
  std::string name;
};
std::vector<WholeTensor> whole_tensors(const ForecastInputs& inputs) {
  const ModelSizes& model = inputs.model;
  const auto rank_tokens = static_cast<double>(inputs.batch * inputs.shard_tokens);
  const auto tokens = static_cast<double>(inputs.batch * inputs.tokens);
  const auto square = tokens * static_cast<double>(inputs.tokens);
  const std::string of_rank = cat("of this rank's ", format_count(inputs.shard_tokens), " tokens"),
                    of_all = cat("of all ", format_count(inputs.tokens), " tokens");
  std::vector<WholeTensor> tensors;
  for (const double bytes : {4.0, 2.0}) {
    const char* const width = bytes == 4 ? "4 bytes a value" : "2 bytes a value";
    tensors.push_back(
        {rank_tokens * static_cast<double>(model.vocab) * bytes, cat("the logits ", of_rank, ", ", width)});
    tensors.push_back(
        {tokens * static_cast<double>(model.vocab) * bytes, cat("the logits ", of_all, ", ", width)});
    tensors.push_back({square * static_cast<double>(inputs.rank_heads) * bytes,
                       cat("the attention scores of ", inputs.rank_heads, " heads, S x S, ", width)});
    tensors.push_back({square * static_cast<double>(model.heads) * bytes,
                       cat("the attention scores of all ", model.heads, " heads, S x S, ", width)});
  }
  for (const double bytes : {1.0, 2.0, 4.0})
    tensors.push_back({square * bytes, cat("an attention mask S x S, ", bytes, " bytes an entry")});
  return tensors;
}

std::optional<std::string> known_tensor(int64_t asked_bytes, const ForecastInputs& inputs) {
  const auto asked = static_cast<double>(asked_bytes);
  if (asked < 64 * 0x1p20) return std::nullopt;  // too many tensors have so few
  for (const WholeTensor& tensor : whole_tensors(inputs))
    // The message rounds to a hundredth, the allocator up to 2 MiB.
    if (std::fabs(asked - tensor.bytes) <= 0.002 * tensor.bytes + 0x1p21) return tensor.name;
  return std::nullopt;
}

// Of a message of Trireme, which counts by category: the category that is farthest above its forecast.
std::string fullest_above(const MemoryError& error, const MemoryForecast& forecast) {
  std::string text;
  int64_t most = 0;
  for (const MemoryCategory category : kAllMemoryCategories) {
    const int64_t wanted = error.held[category] + (error.category == category ? error.asked.value_or(0) : 0);
    if (wanted - forecast.peak[category] <= most) continue;
    most = wanted - forecast.peak[category];
    text = cat("; most in ", name_of(category), ": ", format_bytes(wanted), " where the forecast has ",
               format_bytes(forecast.peak[category]));
  }
  return text;
}

void add_forecast_cause(const MemoryError& error, const MemoryForecast& forecast, const ToldRun& told,
                        std::vector<MemoryErrorCause>& causes) {
  const int64_t expected = forecast.peak_total_bytes, limit = told.device_limit_bytes;
  // What PyTorch counts has nothing of NCCL.
  const int64_t counted = expected - peer_buffers_of_rank_bytes(told.inputs);
  const int64_t asked = error.asked.value_or(0), wanted = error.allocated.value_or(0) + asked;
  const std::string held = error.allocated ? cat("the run held ", format_bytes(*error.allocated),
                                                 " and asked for ", format_bytes(asked))
                                           : std::string();
  if (expected > limit) {
    std::string what = cat("the forecast of what was told is ", format_bytes(expected),
                           ", and tensors may take ", format_bytes(limit));
    // A run that does not fit fails on its way to the fullest moment, when the device is full.
    if (error.allocated)
      what += wanted > limit - limit / 10
                  ? cat("; the message agrees: ", held)
                  : cat("; but ", held, ", less than that: something else took memory too");
    causes.push_back({CauseKind::too_much, what, ""});
  } else if (error.allocated && wanted > counted + counted / 10) {
    causes.push_back(
        {CauseKind::more_than_forecast,
         cat(held, ", and Trireme takes ", format_bytes(counted), " for what was told",
             error.kind == MemoryErrorKind::trireme ? fullest_above(error, forecast) : std::string()),
         "another program holds more than Trireme for the same; or its sequences, batch, degree or "
         "recomputation are not those told. With Trireme this configuration fits"});
  }
}

}  // namespace

std::vector<MemoryErrorCause> memory_error_causes(const MemoryError& error) {
  std::vector<MemoryErrorCause> causes;
  add_causes_of_kind(error, causes);
  if (error.space == MemorySpace::device) add_device_causes(error, causes);
  return causes;
}

std::vector<MemoryErrorCause> memory_error_causes(const MemoryError& error, const ToldRun& told) {
  std::vector<MemoryErrorCause> causes = memory_error_causes(error);
  if (error.asked)
    if (const auto tensor = known_tensor(*error.asked, told.inputs))
      causes.push_back({CauseKind::known_tensor,
                        cat("the ", format_bytes(*error.asked), " asked for are ", *tensor,
                            ", which Trireme never makes whole"),
                        "elsewhere: a fused or tiled loss for logits, flash attention for scores and masks"});
  const MemoryForecast forecast = memory_forecast(told.inputs);
  if (error.capacity && told.device_capacity_bytes > 0 &&
      std::abs(*error.capacity - told.device_capacity_bytes) > told.device_capacity_bytes / 10)
    causes.push_back({CauseKind::another_device,
                      cat("the device of the message has ", format_bytes(*error.capacity),
                          ", the hardware that was told ", format_bytes(told.device_capacity_bytes)),
                      "give the --gpu that ran, or set its memory"});
  if (error.space == MemorySpace::device) add_forecast_cause(error, forecast, told, causes);
  if (causes.empty())
    causes.push_back(
        {CauseKind::unexplained,
         cat("by the forecast what was told fits: ", format_bytes(forecast.peak_total_bytes), " of ",
             format_bytes(told.device_limit_bytes),
             error.allocated ? ", and so does what the message tells"
                             : ", and the message has no figures that say what differs"),
         "look for other processes on the device and for a longer sequence or larger batch than was "
         "told; give the whole output of the rank"});
  return causes;
}

}  // namespace trireme
