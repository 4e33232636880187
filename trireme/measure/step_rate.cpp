#include "trireme/measure/step_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <time.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/call_time.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/gpu_identity.h"
#include "trireme/device/peak_memory.h"
#include "trireme/measure/mean_matmul_rate.h"
#include "trireme/measure/spread.h"
#include "trireme/measure/synthetic_tokens.h"
#include "trireme/plan/published_peak_rate.h"

namespace trireme {
namespace {

double cpu_seconds_of_process() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Traffic traffic_of(const Mesh& mesh) {
  Traffic sum;
  for (const Group* group : {mesh.all.get(), mesh.ulysses.get(), mesh.ring.get(), mesh.sp.get()})
    for (const auto& [name, traffic] : group->traffic()) {
      sum.calls += traffic.calls;
      sum.sent_bytes += traffic.sent_bytes;
      sum.seconds += traffic.seconds;
    }
  return sum;
}

// Matrix products before the steps, and on a CPU between them (mean_matmul_rate.h). Between steps there are
// none on a GPU, where their memory would be taken from what the steps left cached, and none where an update
// goes on beside the next step.
class ProductsBesideSteps {
 public:
  ProductsBesideSteps(Engine& engine, const StepRateOptions& options)
      : measured_steps_(options.steps - options.warmup), measured_(options.matmul_seconds > 0) {
    const EngineOptions& run = engine.options();
    if (run.device.is_cpu() && run.offload.optimizer == Offload::none)
      between_ = std::min(kMostBetween, measured_steps_);
    const auto rate_of = [&](at::ScalarType dtype) {
      return MeanMatmulRate(*engine.mesh().all, run.device, dtype,
                            options.matmul_seconds / static_cast<double>(1 + between_));
    };
    rates_.push_back(rate_of(at::kFloat));
    if (engine.forecast_inputs(1, 1).tile_bytes < kFloat_bytes)
      rates_.push_back(rate_of(run.precision == Precision::fp16 ? at::kHalf : at::kBFloat16));
    if (measured_) measure();
  }

  // Whether products come after so many of the measured steps.
  bool are_due(int64_t steps) const {
    return measured_ && steps > 0 &&
           steps * between_ / measured_steps_ > (steps - 1) * between_ / measured_steps_;
  }
  // Collective.
  void measure() {
    for (MeanMatmulRate& rate : rates_) rate.measure();
  }

  void set(StepRate& rate) const {
    if (!measured_) return;
    rate.matmul_fp32_flops_per_second = rates_.front().flops_per_second();
    rate.matmul_precision_flops_per_second = rates_.back().flops_per_second();
  }

 private:
  static constexpr int64_t kMostBetween = 4;

  int64_t measured_steps_, between_ = 0;
  bool measured_;
  std::vector<MeanMatmulRate> rates_;  // in fp32; and in 16 bits where the run multiplies in them
};

// Of each step, on this rank.
struct StepRecords {
  std::vector<double> seconds, data_seconds, exchange_seconds, offload_seconds, cpu_seconds, sent_bytes;
  std::vector<double> flops;  // of all ranks
  int64_t tokens = 0;         // of the last step, all ranks
};

StepResult timed_step(Engine& engine, const MeasuredSteps& measured, int64_t step, StepRecords& records) {
  const Mesh& mesh = engine.mesh();
  barrier(*mesh.all);
  const Traffic before = traffic_of(mesh);
  const double offload_before = engine.offload_wait_seconds();
  const double cpu_begin = cpu_seconds_of_process(), begin = now_seconds();
  const StepBatches batches = measured.batches(step);
  records.data_seconds.push_back(now_seconds() - begin);
  StepResult result = engine.train_step(batches, measured.learning_rate(step));
  wait_for_stream(engine.options().device);
  records.seconds.push_back(now_seconds() - begin);
  records.cpu_seconds.push_back(cpu_seconds_of_process() - cpu_begin);
  const Traffic after = traffic_of(mesh);
  records.exchange_seconds.push_back(after.seconds - before.seconds);
  records.sent_bytes.push_back(static_cast<double>(after.sent_bytes - before.sent_bytes));
  records.offload_seconds.push_back(engine.offload_wait_seconds() - offload_before);
  records.tokens = 0;
  records.flops.push_back(0);
  for (const TokenBatch& batch : batches) {
    records.tokens += batch.tokens.size(0) * batch.layout.tokens * mesh.dp_size;
    records.flops.back() += engine.model_flops(batch) * mesh.dp_size;
  }
  return result;
}

// Collective.
void set_rates(StepRate& rate, const StepRecords& records, Agreement& agreement, int64_t warmup) {
  const auto without_warmup = [&](const std::vector<double>& of_steps) {
    return std::vector<double>(of_steps.begin() + warmup, of_steps.end());
  };
  const auto median = [&](const std::vector<double>& of_steps) {
    return spread_of(without_warmup(of_steps)).median;
  };
  const std::vector<double> cpu_seconds = without_warmup(records.cpu_seconds);
  rate.cpu_seconds_per_step = agreement.sum(std::accumulate(cpu_seconds.begin(), cpu_seconds.end(), 0.0)) /
                              static_cast<double>(cpu_seconds.size());
  rate.step_seconds = agreement.largest(records.seconds);
  rate.median_step_seconds = median(rate.step_seconds);
  rate.data_seconds = median(agreement.largest(records.data_seconds));
  rate.exchange_seconds = median(agreement.largest(records.exchange_seconds));
  rate.offload_seconds = median(agreement.largest(records.offload_seconds));
  rate.sent_bytes = static_cast<int64_t>(median(agreement.largest(records.sent_bytes)));
  rate.model_flops_per_step = median(records.flops);
  rate.tokens_per_second = static_cast<double>(records.tokens) / rate.median_step_seconds;
}

std::vector<double> rounded(const std::vector<double>& values, double unit) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(std::round(value / unit) * unit);
  return result;
}

}  // namespace

MeasuredSteps synthetic_steps(Engine& engine, const StepRateOptions& options) {
  const Mesh& mesh = engine.mesh();
  const SampleLayout layout{options.sequence_tokens, engine.options().ulysses, engine.options().ring};
  const auto batches = [&engine, &mesh, layout, options](int64_t step) {
    const auto sample = static_cast<uint64_t>((step * mesh.dp_size + mesh.dp_index) * options.batch);
    return StepBatches{synthetic_batch(options.seed, sample, options.batch, engine.config().vocab_size,
                                       layout, mesh.sp->rank())};
  };
  return {batches, [rate = options.learning_rate](int64_t /*step*/) { return rate; }};
}

StepRate measure_step_rate(Engine& engine, const StepRateOptions& options) {
  return measure_step_rate(engine, options, synthetic_steps(engine, options));
}

StepRate measure_step_rate(Engine& engine, const StepRateOptions& options, const MeasuredSteps& measured) {
  if (options.steps <= options.warmup)
    throw ConfigError(cat("--steps ", options.steps, " with --warmup ", options.warmup,
                          ": expected at least one step after the warm-up"));
  Agreement agreement = engine.agreement();
  StepRate rate;
  ProductsBesideSteps products(engine, options);
  const at::Device device = engine.options().device;
  const auto published = published_peak_rate(gpu_identity(device).name, engine.options().precision);
  if (!agreement.any(!published))
    rate.published_flops_per_second = agreement.sum(published->flops_per_second);

  StepRecords records;
  int64_t peak_bytes = 0;  // before products take memory beside what steps keep
  for (int64_t step = 0; step < options.steps; ++step) {
    const StepResult result = timed_step(engine, measured, step, records);
    rate.losses.push_back(result.loss);
    rate.gradient_norms.push_back(result.gradient_norm);
    if (measured.on_step) measured.on_step(result);
    if (products.are_due(step + 1 - options.warmup)) {
      if (peak_bytes == 0) peak_bytes = peak_memory_bytes(device);
      products.measure();
    }
  }
  products.set(rate);
  set_rates(rate, records, agreement, options.warmup);
  if (peak_bytes == 0) peak_bytes = peak_memory_bytes(device);
  rate.peak_memory_bytes = agreement.gather_one(peak_bytes);
  return rate;
}

double StepRate::matmul_share() const {
  if (matmul_fp32_flops_per_second == 0) return 0;
  return model_flops_per_step / median_step_seconds /
         std::max(matmul_fp32_flops_per_second, matmul_precision_flops_per_second);
}

std::optional<double> StepRate::mfu() const {
  if (published_flops_per_second == 0) return std::nullopt;
  return model_flops_per_step / median_step_seconds / published_flops_per_second;
}

Json StepRate::to_json() const {
  std::vector<int64_t> peak_mib;
  for (const int64_t bytes : peak_memory_bytes) peak_mib.push_back(bytes >> 20);
  Json json = {{"step_s", rounded(step_seconds, 1e-4)},
               {"median_step_s", median_step_seconds},
               {"tokens_per_s", tokens_per_second},
               {"model_gflop_per_step", model_flops_per_step / 1e9},
               {"model_gflops", model_flops_per_step / median_step_seconds / 1e9},
               {"matmul_gflops_fp32", matmul_fp32_flops_per_second / 1e9},
               {"matmul_gflops_precision", matmul_precision_flops_per_second / 1e9},
               {"matmul_share", matmul_share()},
               {"cpu_s_per_step", cpu_seconds_per_step},
               {"exchange_s", exchange_seconds},
               {"data_s", data_seconds},
               {"offload_wait_s", offload_seconds},
               {"sent_mib", static_cast<double>(sent_bytes) / (1 << 20)},
               {"losses", losses},
               {"gradient_norms", gradient_norms},
               {"peak_rss_mib", peak_mib}};
  if (const auto share = mfu()) json["mfu"] = *share;
  return json;
}

}  // namespace trireme
