#include "trireme/measure/hardware_rates.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/base/clock.h"
#include "trireme/comm/agreement.h"
#include "trireme/device/gpu_identity.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/device/memory_budget.h"
#include "trireme/device/peak_memory.h"
#include "trireme/device/processor.h"
#include "trireme/kernels/flash4_runner.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/measure/attention_rates.h"
#include "trireme/measure/fitted_link.h"
#include "trireme/measure/mean_matmul_rate.h"
#include "trireme/measure/planned_step.h"
#include "trireme/measure/product_rates.h"
#include "trireme/measure/rate_rounds.h"
#include "trireme/measure/step_rate.h"
#include "trireme/measure/synthetic_tokens.h"
#include "trireme/measure/token_operation_rates.h"
#include "trireme/memory/spill_file.h"
#include "trireme/plan/published_peak_rate.h"

namespace trireme {
namespace {

constexpr int64_t kSmallCopy_bytes = int64_t{256} << 10, kLargeCopy_bytes = int64_t{64} << 20;

// Between pinned memory and the device; the slower direction.
LinkSpeed measure_to_host(const CallTimer& timer) {
  std::vector<TimedExchange> timed;
  for (int64_t bytes = kSmallCopy_bytes; bytes <= kLargeCopy_bytes; bytes *= 16) {
    const at::Tensor host = at::zeros({bytes}, at::kByte).pin_memory();
    const at::Tensor device = at::zeros({bytes}, at::TensorOptions(timer.device()).dtype(at::kByte));
    const std::vector<double> seconds =
        timer.seconds_in_turns({[&] { device.copy_(host, /*non_blocking=*/true); },
                                [&] { host.copy_(device, /*non_blocking=*/true); }});
    timed.push_back({bytes, std::max(seconds[0], seconds[1])});
  }
  return fit_link_speed(timed);
}

void measure_disk(const CallTimer& timer, const std::filesystem::path& folder, HardwareProfile& profile) {
  SpillFile file(folder, /*limit_bytes=*/0);
  std::vector<TimedExchange> written, read;
  for (int64_t bytes = kSmallCopy_bytes; bytes <= kLargeCopy_bytes; bytes *= 16) {
    at::Tensor values = at::ones({bytes}, at::kByte);
    const SpillFile::Region region = file.reserve(bytes);
    const std::vector<double> seconds =
        timer.seconds_in_turns({[&] { file.write(region, values.const_data_ptr()).wait(); },
                                [&] { file.read(region, values.mutable_data_ptr()).wait(); }});
    written.push_back({bytes, seconds[0]});
    read.push_back({bytes, seconds[1]});
  }
  profile.disk_write = fit_link_speed(written);
  profile.disk_read = fit_link_speed(read);
}

void measure_links(World& world, at::Device device, HardwareProfile& profile) {
  constexpr int64_t kRepeats = 32;
  const int machine = profile.devices_per_machine, machines = world.size() / machine;
  std::vector<std::vector<int>> within(static_cast<size_t>(machines)), across(static_cast<size_t>(machine));
  for (int rank = 0; rank < world.size(); ++rank) {
    within[static_cast<size_t>(rank / machine)].push_back(rank);
    across[static_cast<size_t>(rank % machine)].push_back(rank);
  }
  const auto measure = [&](const std::string& name, const std::vector<std::vector<int>>& members) {
    return measure_link(*world.make_group(name, members), device, kRepeats).speed;
  };
  if (machine > 1) profile.within_machine = measure("within machines", within);
  if (machines > 1) profile.across_machines = measure("across machines", across);
}

void measure_round(const CallTimer& timer, at::ScalarType dtype, MeanMatmulRate* products, Rates& rates) {
  if (products != nullptr) {
    products->measure();
    measure_product_rates(timer, dtype, rates);
    products->measure();
  }
  measure_attention_rates(timer, dtype, rates);
  if (products != nullptr) products->measure();
  measure_token_operation_rates(timer, dtype, rates);
}

void name_sources(HardwareProfile& profile, int ranks) {
  const std::string command = cat("trireme bench hardware, ", ranks, ranks == 1 ? " rank" : " ranks",
                                  " at work on ", profile.description);
  const auto from = [&](FigureOrigin origin, const std::string& figure, const std::string& source) {
    profile.sources.push_back({figure, origin, source});
  };
  for (const auto& [kind, name] : enum_names(WorkKind{})) {
    from(FigureOrigin::measured, name, command);
    from(FigureOrigin::measured, std::string(name) + "_32_bit", command);
  }
  for (const char* figure :
       {"memory_bytes", "host_memory_bytes", "outside_tensors_bytes", "host_optimizer_per_second",
        "micro_batch_seconds", "step_seconds", "devices_per_machine"})
    from(FigureOrigin::measured, figure, command);
  for (const auto& [figure, link] : {std::pair("within_machine", &HardwareProfile::within_machine),
                                     {"across_machines", &HardwareProfile::across_machines},
                                     {"to_host", &HardwareProfile::to_host},
                                     {"disk_read", &HardwareProfile::disk_read},
                                     {"disk_write", &HardwareProfile::disk_write}})
    if ((profile.*link).bytes_per_second > 0) from(FigureOrigin::measured, figure, command);
  for (const char* figure : {"peak_flops_16_bit", "peak_flops_32_bit"})
    from(profile.is_gpu ? FigureOrigin::published : FigureOrigin::measured, figure,
         profile.is_gpu ? "data sheet, where the GPU is known, else the best measured rate" : command);
  from(FigureOrigin::estimated, "fragments_share", "what the caching allocator may hold beside tensors");
  if (profile.is_gpu) from(FigureOrigin::estimated, "peer_buffers_bytes", kPeerBuffersSource);
  from(FigureOrigin::estimated, "time_error", "docs/benchmarks: predicted beside measured steps");
}

// No less than any rate of the profile that counts FLOPs, so that no planned step exceeds it.
double peak_of(at::Device device, Precision precision, double measured_flops, const Rates& rates) {
  if (const auto published = published_peak_rate(gpu_identity(device).name, precision))
    return published->flops_per_second;
  double peak = measured_flops;
  for (const auto& [kind, table] : rates)
    if (counts_flops(kind))
      for (const RatePoint& point : table.points) peak = std::max(peak, point.per_second);
  return peak;
}

void describe(const World& world, at::Device device, HardwareProfile& profile) {
  profile.is_gpu = !device.is_cpu();
  profile.name = profile.is_gpu ? gpu_identity(device).name : cpu_model_name();
  profile.devices_per_machine = world.common_machine_ranks();
  profile.description =
      profile.is_gpu ? profile.name : cat(profile.name, ", ", at::get_num_threads(), " threads a rank");
  profile.host_memory_bytes = host_memory_limit_bytes();
  profile.memory_bytes =
      profile.is_gpu ? device_memory_bytes(device) : profile.rank_host_bytes(profile.devices_per_machine);
  // What lives before any tensor, and, beside a GPU, the context that its first tensor makes.
  at::zeros({1}, device);
  profile.outside_tensors_bytes = profile.is_gpu
                                      ? device_memory_bytes(device) - device_memory_left_bytes(device)
                                      : peak_memory_bytes(device);
  profile.fragments_share = profile.is_gpu ? kFragmentsOnGpu_share : kCachedShare;
  if (profile.is_gpu) profile.peer_buffers_bytes = kPeerBuffersOnGpu_bytes;
  if (!profile.is_gpu) profile.threads = at::get_num_threads();
  profile.bf16_products = profile.bf16_attention = profile.is_gpu || processor_bf16_units().has_value();
  profile.flash4 = profile.is_gpu && flash4_lacks().empty();
  profile.time_error_share = 0.15;
}

}  // namespace

HardwareProfile measure_hardware(World& world, at::Device device, const HardwareRateOptions& options) {
  const at::NoGradGuard no_autograd;
  const auto group = world.make_group("hardware", {world.identity().all_ranks()});
  // Some 200 points, each of which takes four times its share: first calls, and large sizes.
  constexpr double kShares = 800;
  const CallTimer timer(*group, device, device, options.seconds / (kShares * kRateRounds));

  HardwareProfile profile;
  describe(world, device, profile);
  // About what a shape is given between the steps of a run (step_rate.h), so that the two take the same
  // shapes; a share of a short measurement.
  constexpr double kBesideSteps_seconds = 0.0625;
  const double product_seconds = std::min(kBesideSteps_seconds, options.seconds / 60);
  MeanMatmulRate products_32_bit(*group, device, at::kFloat, product_seconds),
      products_16_bit(*group, device, at::kBFloat16, product_seconds);
  std::vector<Rates> rounds_32_bit, rounds_16_bit;
  const double start = now_seconds();
  do {
    measure_round(timer, at::kFloat, &products_32_bit, rounds_32_bit.emplace_back());
    measure_round(timer, at::kBFloat16, profile.bf16_products ? &products_16_bit : nullptr,
                  rounds_16_bit.emplace_back());
  } while (rounds_32_bit.size() < kRateRounds &&
           Agreement(*group, device).largest(std::vector{now_seconds() - start}).front() < options.seconds);
  profile.rates_32_bit = mean_of_rounds(rounds_32_bit);
  profile.rates_16_bit = mean_of_rounds(rounds_16_bit);
  if (!profile.bf16_products)  // the engine multiplies them in fp32
    for (const WorkKind product :
         {WorkKind::matmul, WorkKind::weight_gradient, WorkKind::head_matmul, WorkKind::head_weight_gradient})
      profile.rates_16_bit[product] = profile.rates_32_bit.at(product);
  const auto peak = [&](Precision precision, const MeanMatmulRate& products, const Rates& rates) {
    return peak_of(device, precision, products.flops_per_second() / world.size(), rates);
  };
  profile.peak_flops_32_bit = peak(Precision::fp32, products_32_bit, profile.rates_32_bit);
  profile.peak_flops_16_bit =
      peak(Precision::bf16, profile.bf16_products ? products_16_bit : products_32_bit, profile.rates_16_bit);
  if (!profile.is_gpu)
    profile.peak_flops_16_bit = std::max(profile.peak_flops_16_bit, profile.peak_flops_32_bit);
  measure_links(world, device, profile);
  if (profile.is_gpu) profile.to_host = measure_to_host(timer);
  if (!options.offload_dir.empty()) measure_disk(timer, options.offload_dir, profile);
  if (profile.is_gpu) {
    Rates of_host;
    measure_token_operation_rates(CallTimer(*group, at::kCPU, device, timer.seconds_of_each()), at::kFloat,
                                  of_host);
    profile.host_optimizer_per_second = of_host[WorkKind::optimizer].points.back().per_second;
  } else {
    profile.host_optimizer_per_second = profile.rates_32_bit[WorkKind::optimizer].points.back().per_second;
  }
  name_sources(profile, world.size());
  return profile;
}

void measure_overhead(Engine& engine, HardwareProfile& profile) {
  constexpr int64_t kTokens = 64, kFew = 1, kMany = 3, kSteps = 24, kWarmup = 4;
  profile.micro_batch_seconds = profile.step_seconds = 0;
  const Mesh& mesh = engine.mesh();
  const SampleLayout layout{kTokens, engine.options().ulysses, engine.options().ring};
  const auto unexplained = [&](int64_t accumulation) {
    StepRateOptions options{
        .sequence_tokens = kTokens, .steps = kSteps, .warmup = kWarmup, .matmul_seconds = 0};
    const auto batches = [&](int64_t step) {
      StepBatches made;
      for (int64_t i = 0; i < accumulation; ++i)
        made.push_back(synthetic_batch(0, static_cast<uint64_t>(step * accumulation + i), 1,
                                       engine.config().vocab_size, layout, mesh.sp->rank()));
      return made;
    };
    const StepRate rate =
        measure_step_rate(engine, options, {batches, [](int64_t /*step*/) { return 1e-6; }});
    return rate.median_step_seconds -
           step_time(planned_step_of(engine, 1, kTokens, accumulation), profile).seconds;
  };
  const double few = unexplained(kFew), many = unexplained(kMany);
  profile.micro_batch_seconds = std::max(0.0, (many - few) / static_cast<double>(kMany - kFew));
  profile.step_seconds = std::max(0.0, few - profile.micro_batch_seconds);
}

}  // namespace trireme
