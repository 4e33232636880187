// What the planner knows of one device and of what joins devices: rates by kind of work, memory, links, and
// where each number is from. Built in for known GPUs (hardware_catalog.h), or measured on the spot by
// `trireme bench hardware` and read from its file.
//
//   seconds of a piece of work = amount / rates(kind, size, width)
//   seconds of an exchange     = calls x latency + bytes / bandwidth       (Hockney's model)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"
#include "trireme/memory/offload.h"

namespace trireme {

// Work of one device in a training step. `amount`, `size` and `width` of a piece of it:
enum class WorkKind : uint8_t {
  matmul,           // FLOPs of x W and dy W'; size: the least of its weight's sides; width: rows of a tile
  weight_gradient,  // FLOPs of dy' x, summed in fp32; the same
  head_matmul,      // the same of a head's matrix, which is too large for a cache
  head_weight_gradient,
  attention_forward,  // FLOPs, 4 a pair of query and key and head value; size: tokens of a document; width: D
  attention_backward,   // FLOPs, 10 a pair and value; the same
  norm,                 // values of x that are read; size, of this and all below: of one call's amount
  norm_backward,        // values of x
  rotation,             // values of q and k that are turned, forward or backward
  activation,           // values of act: a gated unit, or gelu
  activation_backward,  // values of act
  cross_entropy,        // logits
  embedding,            // values of x that are looked up, or whose gradient is added
  copy,                 // values that go from one buffer of a layer to another
  optimizer,            // elements of a unit that are stepped: gradient norm, clipping, new values included
};
// Products and attention; of the others values are counted.
constexpr bool counts_flops(WorkKind kind) {
  return kind <= WorkKind::attention_backward;
}
constexpr bool is_attention(WorkKind kind) {
  return kind == WorkKind::attention_forward || kind == WorkKind::attention_backward;
}
constexpr auto enum_names(WorkKind) {
  using enum WorkKind;
  return std::to_array<EnumName<WorkKind>>({{matmul, "matmul"},
                                            {weight_gradient, "weight_gradient"},
                                            {head_matmul, "head_matmul"},
                                            {head_weight_gradient, "head_weight_gradient"},
                                            {attention_forward, "attention_forward"},
                                            {attention_backward, "attention_backward"},
                                            {norm, "norm"},
                                            {norm_backward, "norm_backward"},
                                            {rotation, "rotation"},
                                            {activation, "activation"},
                                            {activation_backward, "activation_backward"},
                                            {cross_entropy, "cross_entropy"},
                                            {embedding, "embedding"},
                                            {copy, "copy"},
                                            {optimizer, "optimizer"}});
}

struct RatePoint {
  double size = 0;        // 0: the kind has none
  double width = 0;       // 0: the kind has none
  double per_second = 0;  // units of the kind's amount
  bool operator==(const RatePoint&) const = default;
};

// Between points by straight lines over the logarithms of size and width; beyond the last point its rate.
struct RateTable {
  std::vector<RatePoint> points;
  double per_second(double size, double width) const;  // InternalError: no point
};

// Rates in values of 2 bytes (bf16, fp16) and of 4 (fp32).
using Rates = std::map<WorkKind, RateTable>;

struct LinkSpeed {
  double latency_seconds = 0;   // of one exchange
  double bytes_per_second = 0;  // sent by one device, all others of the exchange together; 0: there is none
  double seconds(double calls, double bytes) const;
  bool operator==(const LinkSpeed&) const = default;
};

enum class FigureOrigin : uint8_t { published, measured, estimated };
constexpr auto enum_names(FigureOrigin) {
  using enum FigureOrigin;
  return std::to_array<EnumName<FigureOrigin>>(
      {{published, "published"}, {measured, "measured"}, {estimated, "estimated"}});
}

struct FigureSource {
  std::string figure;  // "attention_forward", of fp32 values "attention_forward_32_bit", "memory_bytes"
  FigureOrigin origin = FigureOrigin::estimated;
  std::string source;  // the document or the command, and who measured
};

// What is reserved beside tensors with expandable segments.
inline constexpr double kFragmentsOnGpu_share = 0.03;
// Of each of NCCL's 32 channels a buffer to receive, 10 MiB of three protocols, and one to send, 2 MiB (NCCL
// 2.26.2 transport/p2p.cc p2pRecvSetup, p2pSendSetup; init.cc computeBuffSizes; graph/paths.cc
// ncclTopoComputeP2pChannels; as in 2.30.7).
inline constexpr int64_t kPeerBuffersOnGpu_bytes = 32 * (int64_t{12} << 20);
inline constexpr const char* kPeerBuffersSource =
    "12 MiB for each of 32 channels, by NCCL 2.26.2's source: 2.6 of the 3.3 GiB that the first "
    "all-to-all of eight H100 took (NVIDIA/nccl issue 1685)";

struct HardwareProfile {
  std::string name;         // "h100-80gb"
  std::string description;  // "NVIDIA H100 SXM5, 80 GB"
  bool is_gpu = true;       // else a process of a CPU machine, whose memory is the host's
  int devices_per_machine = 8;
  int64_t memory_bytes = 0;  // of one device, as its driver tells; of a CPU, the machine's share of a rank
  int64_t host_memory_bytes = 0;  // of a machine; 0: unknown
  // What a process holds beside tensors: context, libraries, communicators; and the share of its tensors that
  // the allocator's fragments add.
  int64_t outside_tensors_bytes = 0;
  double fragments_share = 0;
  // Of a GPU, NCCL's buffers for each rank of its machine with which it exchanges directly. What it takes for
  // ranks of other machines is not known.
  int64_t peer_buffers_bytes = 0;
  // Published, of dense products: what MFU is of. Of a CPU the best that was measured.
  double peak_flops_16_bit = 0;
  double peak_flops_32_bit = 0;
  Rates rates_16_bit;
  Rates rates_32_bit;
  LinkSpeed within_machine;   // between devices of a machine
  LinkSpeed across_machines;  // of one device's share of its machine's network
  LinkSpeed to_host;          // from the device; each direction
  LinkSpeed disk_read;        // of one device's share
  LinkSpeed disk_write;
  double host_optimizer_per_second = 0;  // elements that one rank's share of the host's cores steps
  double micro_batch_seconds = 0;        // that no work explains, of one micro-batch
  double step_seconds = 0;               // of one step
  // A CPU's: how it was measured. 0: a GPU.
  int threads = 0;
  bool bf16_products = true;  // a CPU without their instructions multiplies bf16 values in fp32
  bool bf16_attention = true;
  bool flash4 = false;             // a GPU that runs FlashAttention-4's kernels
  double time_error_share = 0.25;  // of a step's seconds; an estimate
  std::vector<FigureSource> sources;

  const char* device_noun() const { return is_gpu ? "GPU" : "rank"; }
  // Of so many ranks, those on one machine.
  int machine_devices(int ranks) const { return std::min(ranks, devices_per_machine); }
  // Host memory of each of so many ranks; where it is unknown, as much as its device has.
  int64_t rank_host_bytes(int ranks) const {
    return host_memory_bytes > 0 ? host_memory_bytes / machine_devices(ranks) : memory_bytes;
  }

  // Whether a GPU's host, or a disk, is there, and the rates of copies are known.
  bool can_offload_to(Offload target) const {
    if (target == Offload::disk) return disk_read.bytes_per_second > 0 && disk_write.bytes_per_second > 0;
    return is_gpu && to_host.bytes_per_second > 0;
  }

  const Rates& rates(int64_t element_bytes) const { return element_bytes == 2 ? rates_16_bit : rates_32_bit; }
};

Json to_json(const FigureSource& source);
Json to_json(const HardwareProfile& profile);
// Throws DataError that names the file and the field: one that is missing, of a wrong type, or no rate.
HardwareProfile hardware_profile_from_json(const Json& json, const std::string& origin);

}  // namespace trireme
