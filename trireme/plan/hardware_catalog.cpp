#include "trireme/plan/hardware_catalog.h"

#include <cctype>
#include <filesystem>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/nearest_name.h"
#include "trireme/base/sizes.h"
#include "trireme/kernels/backward_heads.h"
#include "trireme/kernels/long_documents.h"
#include "trireme/plan/published_peak_rate.h"
#include "trireme/plan/token_operation_bytes.h"

namespace trireme {
namespace {

// FLOP/s of a head 128 wide, causal, bf16, by tokens.
struct AttentionSpeed {
  double tokens, forward, backward;
};

// Below 2,048 tokens: as the rates of cuDNN fall on an H100 in figure 5 of arXiv 2407.08608 (315 and 410 of
// 484).
constexpr AttentionSpeed kAmpere[] = {
    {512, 101e12, 71e12},   {1024, 131e12, 92e12},   {2048, 155e12, 109e12},  {4096, 174e12, 128e12},
    {8192, 177e12, 136e12}, {16384, 173e12, 139e12}, {32768, 176e12, 143e12},
};
constexpr AttentionSpeed kHopper[] = {
    {512, 340e12, 291e12},    {1024, 442e12, 377e12},   {2048, 522e12, 446e12},   {4096, 619e12, 558e12},
    {8192, 675e12, 629e12},   {16384, 702e12, 606e12},  {32768, 669e12, 608e12},  {65536, 635e12, 602e12},
    {131072, 651e12, 616e12}, {262144, 670e12, 619e12}, {524288, 664e12, 615e12},
};
constexpr AttentionSpeed kBlackwell[] = {
    {512, 84e12, 134e12},      {1024, 254e12, 308e12},    {2048, 479e12, 371e12},
    {4096, 856e12, 701e12},    {8192, 1171e12, 942e12},   {16384, 1332e12, 1075e12},
    {32768, 1419e12, 1109e12}, {65536, 1382e12, 1073e12}, {131072, 1355e12, 1048e12},
};

// FlashAttention-2 has no code for Hopper or later. On an A100 it is as fast as cuDNN; on an H100 as measured
// (kernels/long_documents.h), of cuDNN's 633 TFLOP/s where FlashAttention-4 has 702; a B200 is taken to run
// it as a Hopper does.
constexpr double kFlashOnAmpere = 1, kFlashOnHopper = 633.0 / 702 / 1.8,
                 kFlashOnBlackwell = kFlashOnHopper * kHopper[5].forward / kBlackwell[5].forward;

// Of heads of another width over those 128 wide.
struct WidthShare {
  double forward, backward;
};
// arXiv 2407.08608 on an H100 (figures 5 and 6); on an H200 FlashAttention-4 (2026-11-27-gpu-flash4.md).
constexpr WidthShare kNarrow{0.67, 0.85}, kNarrowByFlash4{0.83, 0.86}, kWidestByFlash4{1.1, 0.6};

struct Chip {
  const char* name;
  const char* description;
  double memory_gib;
  double memory_bytes_per_second;
  double best_matmul_flops_per_second;  // FLOP/s of bf16 products at their best shape
  std::span<const AttentionSpeed> attention;
  double flash_share;  // FlashAttention-2's rate over that of `attention`
  bool flash4;         // `attention` is FlashAttention-4's, else cuDNN's
  // In one direction, by data sheet.
  double nvlink_bytes_per_second, network_bytes_per_second, pcie_bytes_per_second;
  double host_memory_gib, host_bytes_per_second;
  int drives;
  double outside_gib;
  const char* data_sheet;
  const char* machine_sheet;
  const char* attention_source;
};

constexpr const char* kAmpereAttention =
    "cudnn-frontend, benchmark/attention_training/results/llama3.1/a100 of 2026-09-28 (cuDNN 9.27 on an A100 "
    "80GB PCIe, whose power limit is lower)";
constexpr const char* kHopperAttention =
    "FlashAttention-4 in bf16 (fp16 is slower): cudnn-frontend, "
    "benchmark/attention_training/results/llama3.1/h200 of 2026-09-28 (64 query and 8 key/value heads, "
    "causal); from 32,768 tokens on by Trireme on an H200 with 32 query heads, from 262,144 on with 8 and 4 "
    "(docs/benchmarks/history/2026-11-27-gpu-flash4.md)";

const Chip kChips[] = {
    {"a100-40gb", "NVIDIA A100 SXM4, 40 GB", 39.4, 1.555e12, 271.2e12, kAmpere, kFlashOnAmpere, false, 300e9,
     25e9, 31.5e9, 1024, 409.6e9, 4, 1.2, "NVIDIA A100 data sheet", "DGX A100 320GB data sheet",
     kAmpereAttention},
    {"a100-80gb", "NVIDIA A100 SXM4, 80 GB", 79.1, 2.039e12, 271.2e12, kAmpere, kFlashOnAmpere, false, 300e9,
     25e9, 31.5e9, 2048, 409.6e9, 8, 1.2, "NVIDIA A100 data sheet", "DGX A100 640GB data sheet",
     kAmpereAttention},
    {"h100-80gb", "NVIDIA H100 SXM5, 80 GB", 79.1, 3.35e12, 794.5e12, kHopper, kFlashOnHopper, true, 450e9,
     50e9, 63e9, 2048, 614.4e9, 8, 1.5, "NVIDIA H100 data sheet", "DGX H100 data sheet", kHopperAttention},
    {"h200-141gb", "NVIDIA H200 SXM5, 141 GB", 139.8, 4.8e12, 794.5e12, kHopper, kFlashOnHopper, true, 450e9,
     50e9, 63e9, 2048, 614.4e9, 8, 1.5, "NVIDIA H200 data sheet", "DGX H200 data sheet", kHopperAttention},
    {"b200-180gb", "NVIDIA B200 SXM, 180 GB", 178.3, 8e12, 1745e12, kBlackwell, kFlashOnBlackwell, false,
     900e9, 50e9, 63e9, 2048, 716.8e9, 8, 1.5, "NVIDIA HGX B200 data sheet", "DGX B200 user guide",
     "cudnn-frontend, "
     "benchmark/sdpa_benchmark_training/artifacts/sdpa_bf16_benchmark_results_NVIDIA_B200.csv (cuDNN "
     "through PyTorch, 128 query and 8 key/value heads, causal)"},
};

// Of the published memory bandwidth, what streaming kernels reach: 4.0 of 4.8 TB/s on an H200.
constexpr double kStreamed = 0.83;
// Of NVLink's line rate, what NCCL moves; of InfiniBand's; of PCIe's, what pinned copies reach.
constexpr double kNvlinkUsed = 370.0 / 450, kNetworkUsed = 48.5 / 50, kPcieUsed = 0.8;
// Of FlashAttention-2's rate, what memory-efficient attention has for heads that are wider than it takes: a guess,
// from its keeping of sums in global memory and its products without warpgroups. Nothing was measured.
constexpr WidthShare kWideByEfficient{0.35, 0.3};
// Of the peak of fp32 without TF32: cuBLAS, and the memory-efficient attention kernel.
constexpr double kFp32Products = 0.77, kFp32Forward = 0.35, kFp32Backward = 0.25;

class ProfileOfChip {
 public:
  explicit ProfileOfChip(const Chip& chip)
      : chip_(chip), streamed_(kStreamed * chip.memory_bytes_per_second) {}

  HardwareProfile run() {
    profile_.name = chip_.name;
    profile_.description = chip_.description;
    profile_.devices_per_machine = 8;
    from(FigureOrigin::published, "devices_per_machine", chip_.machine_sheet);
    memory();
    profile_.peak_flops_16_bit = published_flops(Precision::bf16);
    profile_.peak_flops_32_bit = published_flops(Precision::fp32);
    from(FigureOrigin::published, "peak_flops_16_bit", cat(chip_.data_sheet, ", without sparsity"));
    from(FigureOrigin::published, "peak_flops_32_bit", cat(chip_.data_sheet, ", vector units: TF32 is off"));
    products();
    attention();
    token_operations();
    links();
    rest();
    return std::move(profile_);
  }

 private:
  void from(FigureOrigin origin, const std::string& figure, const std::string& source) {
    profile_.sources.push_back({figure, origin, source});
  }
  double published_flops(Precision precision) const {
    const auto rate = published_peak_rate(chip_.description, precision);
    TRIREME_ASSERT(rate, "no peak rate is published for ", chip_.description);
    return rate->flops_per_second;
  }
  static int64_t gibibytes(double count) { return static_cast<int64_t>(count * (1 << 30)); }

  void memory() {
    profile_.memory_bytes = gibibytes(chip_.memory_gib);
    from(FigureOrigin::measured, "memory_bytes",
         "total capacity in PyTorch's out-of-memory messages for this device");
    profile_.host_memory_bytes = gibibytes(chip_.host_memory_gib);
    from(FigureOrigin::published, "host_memory_bytes", chip_.machine_sheet);
    profile_.outside_tensors_bytes = gibibytes(chip_.outside_gib);
    from(FigureOrigin::estimated, "outside_tensors_bytes",
         "0.5 GiB of CUDA context and modules, 0.15 to 0.5 GiB for each of two NCCL communicators of eight "
         "devices, "
         "the rest for cuBLAS and cuDNN workspaces");
    profile_.fragments_share = kFragmentsOnGpu_share;
    from(FigureOrigin::estimated, "fragments_share",
         "what is reserved beside tensors with expandable segments");
    profile_.peer_buffers_bytes = kPeerBuffersOnGpu_bytes;
    from(FigureOrigin::estimated, "peer_buffers_bytes", kPeerBuffersSource);
  }

  // Each product moves its weight's tile, and its rows once in and once out, before or after it computes:
  //   seconds per FLOP = 1 / best + (weight bytes / (2 width) + 2 value bytes / (2 least side)) / bandwidth
  void products() {
    for (const bool wide : {false, true}) {
      Rates& rates = wide ? profile_.rates_32_bit : profile_.rates_16_bit;
      const double best =
          wide ? kFp32Products * profile_.peak_flops_32_bit : chip_.best_matmul_flops_per_second;
      const double value_bytes = wide ? 4 : 2;
      for (const WorkKind kind : {WorkKind::matmul, WorkKind::weight_gradient, WorkKind::head_matmul,
                                  WorkKind::head_weight_gradient}) {
        // The gradient is read and written, in fp32.
        const bool sums = kind == WorkKind::weight_gradient || kind == WorkKind::head_weight_gradient;
        const double weight_bytes = sums ? 2 * kFloat : value_bytes;
        for (const double least : {64, 128, 256, 512, 1024, 2048, 4096, 8192})
          for (const double width : {64, 256, 1024, 2048, 4096, 8192, 16384})
            rates[kind].points.push_back(
                {least, width,
                 1 / (1 / best + (weight_bytes / (2 * width) + value_bytes / least) / streamed_)});
        from(wide ? FigureOrigin::estimated : FigureOrigin::measured, figure(kind, wide),
             wide ? cat(kFp32Products, " of the fp32 peak, and memory traffic at the streamed bandwidth")
                  : cat("ml-engineering by S. Bekman, table of maximum achievable matmul FLOPS (",
                        chip_.best_matmul_flops_per_second / 1e12,
                        " TFLOP/s at the best shape); other shapes estimated: memory traffic added at ",
                        kStreamed, " of the published bandwidth"));
      }
    }
  }

  void attention() {
    profile_.flash4 = chip_.flash4;
    const WidthShare flash2{chip_.flash_share, chip_.flash_share};
    const std::pair<double, WidthShare> widths[] = {
        {64, profile_.flash4 ? kNarrowByFlash4 : kNarrow},
        {kMostDenseWidth, {1, 1}},
        {kMostDenseWidth + 8, flash2},
        {248, flash2},
        {kMostFlashWidth, profile_.flash4 ? kWidestByFlash4 : flash2},
        {kMostFlashWidth + 8,
         {chip_.flash_share * kWideByEfficient.forward, chip_.flash_share * kWideByEfficient.backward}}};
    for (const AttentionSpeed& speed : chip_.attention)
      for (const auto& [width, share] : widths) {
        profile_.rates_16_bit[WorkKind::attention_forward].points.push_back(
            {speed.tokens, width, speed.forward * share.forward});
        profile_.rates_16_bit[WorkKind::attention_backward].points.push_back(
            {speed.tokens, width, speed.backward * share.backward});
      }
    profile_.rates_32_bit[WorkKind::attention_forward] = {
        {{0, 0, kFp32Forward * profile_.peak_flops_32_bit}}};
    profile_.rates_32_bit[WorkKind::attention_backward] = {
        {{0, 0, kFp32Backward * profile_.peak_flops_32_bit}}};
    for (const WorkKind kind : {WorkKind::attention_forward, WorkKind::attention_backward}) {
      from(FigureOrigin::measured, figure(kind, false),
           cat(chip_.attention_source, ", width 128; ",
               profile_.flash4
                   ? "widths 64 and 256 as there"
                   : "width 64 by the ratio that arXiv 2407.08608 has on an H100 (figures 5 and 6)",
               "; other heads wider than 128 by FlashAttention-2's share: ",
               format_fixed(chip_.flash_share, 2), "; those wider than ", kMostFlashWidth,
               " estimated: ", kWideByEfficient.forward, " and ", kWideByEfficient.backward,
               " of that, forward and backward, by memory-efficient attention"));
      from(FigureOrigin::estimated, figure(kind, true),
           "the memory-efficient kernel without tensor cores, as a share of the fp32 peak");
    }
  }

  void token_operations() {
    for (const TokenOperationBytes& operation : kTokenOperationBytes)
      for (const bool wide : {false, true}) {
        const double bytes = wide ? operation.of_4_byte_values : operation.of_2_byte_values;
        (wide ? profile_.rates_32_bit
              : profile_.rates_16_bit)[operation.kind] = {{{0, 0, streamed_ / bytes}}};
        from(FigureOrigin::estimated, figure(operation.kind, wide),
             cat(bytes, " bytes a unit (plan/token_operation_bytes.h) at ", kStreamed,
                 " of the bandwidth in the ", chip_.data_sheet));
      }
  }

  void links() {
    profile_.within_machine = {25e-6, kNvlinkUsed * chip_.nvlink_bytes_per_second};
    from(FigureOrigin::measured, "within_machine",
         cat("line rate of NVLink in the ", chip_.data_sheet,
             ", of which NCCL moves 370 / 450 (S. Jeaugey, NVIDIA/nccl-tests issue 212); latency estimated"));
    profile_.across_machines = {40e-6, kNetworkUsed * chip_.network_bytes_per_second};
    from(FigureOrigin::measured, "across_machines",
         cat("one network card for each GPU (", chip_.machine_sheet,
             "), of which NCCL moves 48 to 49 of 50 GB/s (NVIDIA/nccl-tests issue 267); latency estimated"));
    profile_.to_host = {20e-6, kPcieUsed * chip_.pcie_bytes_per_second};
    from(FigureOrigin::estimated, "to_host", cat(kPcieUsed, " of PCIe x16 in the ", chip_.data_sheet));
    const double drives = chip_.drives / 8.0;
    profile_.disk_read = {200e-6, drives * 5e9};
    profile_.disk_write = {200e-6, drives * 3e9};
    for (const char* figure : {"disk_read", "disk_write"})
      from(FigureOrigin::estimated, figure,
           cat(chip_.drives, " NVMe drives for eight devices (", chip_.machine_sheet,
               "), each 5 GB/s read and 3 GB/s written"));
  }

  void rest() {
    // AdamW moves 28 bytes an element (shard/adamw_kernel.h), and 6 where new values are rounded on their way
    // to the device.
    constexpr double kElement_bytes = 34, kHostStreamed = 0.6;
    profile_.host_optimizer_per_second = kHostStreamed * chip_.host_bytes_per_second / 8 / kElement_bytes;
    from(FigureOrigin::estimated, "host_optimizer_per_second",
         cat(kHostStreamed, " of an eighth of the host's memory bandwidth (processors of the ",
             chip_.machine_sheet, "), ", kElement_bytes, " bytes an element"));
    profile_.micro_batch_seconds = 5e-3;
    profile_.step_seconds = 10e-3;
    for (const char* figure : {"micro_batch_seconds", "step_seconds"})
      from(FigureOrigin::estimated, figure, "waits of the host for the device at both ends");
    profile_.time_error_share = 0.3;
    from(FigureOrigin::estimated, "time_error",
         "steps of one device alone were measured, of an H200, and were within 5 % from 8,192 tokens on, 9 % "
         "at 2,048");
  }

  static std::string figure(WorkKind kind, bool wide) {
    return std::string(name_of(kind)) + (wide ? "_32_bit" : "");
  }

  static constexpr double kFloat = 4;
  const Chip& chip_;
  const double streamed_;
  HardwareProfile profile_;
};

// "NVIDIA A100-SXM4-80GB" -> "a10080gb": what is the same in every profile says nothing.
std::string key_of(const std::string& name) {
  std::string key, word;
  for (const char c : name + " ") {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) {
      word += static_cast<char>(std::tolower(letter));
      continue;
    }
    const bool silent = word == "nvidia" || word.starts_with("sxm") || word.starts_with("hbm");
    if (!silent) key += word;
    word.clear();
  }
  return key;
}

}  // namespace

const std::vector<HardwareProfile>& hardware_catalog() {
  static const std::vector<HardwareProfile> profiles = [] {
    std::vector<HardwareProfile> made;
    for (const Chip& chip : kChips) made.push_back(ProfileOfChip(chip).run());
    return made;
  }();
  return profiles;
}

const HardwareProfile& find_hardware(const std::string& name) {
  constexpr size_t kLeastLetters = 4;  // "h100"
  const std::string key = key_of(name);
  std::vector<std::string> names;
  std::vector<const HardwareProfile*> meant;
  for (const HardwareProfile& profile : hardware_catalog()) {
    names.push_back(profile.name);
    if (key.size() < kLeastLetters || !key_of(profile.name).starts_with(key)) continue;
    meant.push_back(&profile);
  }
  if (meant.size() == 1) return *meant.front();
  if (meant.size() > 1)
    throw ConfigError(cat("the GPU is '", quotation(name),
                          "'; expected which one: ", joined(meant, " or ", &HardwareProfile::name)));
  throw ConfigError(cat("the GPU '", quotation(name), "' is not known; expected one of ", joined(names),
                        ", or the file that trireme bench hardware --out wrote on the machine",
                        did_you_mean(name, names)));
}

HardwareProfile read_hardware(const std::string& file_or_name) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file_or_name, ignored))
    return hardware_profile_from_json(read_json(file_or_name), file_or_name);
  return find_hardware(file_or_name);
}

}  // namespace trireme
