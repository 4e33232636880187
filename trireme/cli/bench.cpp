#include "trireme/cli/bench.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/DeviceGuard.h>

#include "trireme/base/cpu_cores.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/bench_hardware.h"
#include "trireme/cli/bench_simulated.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/model_directory.h"
#include "trireme/device/processor.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/matmul_rate.h"
#include "trireme/measure/memory_report.h"
#include "trireme/measure/planned_step.h"
#include "trireme/plan/hardware_catalog.h"

namespace trireme {
namespace {

void print_text(const StepRate& rate, const std::string& description) {
  std::cout << description << "\n"
            << "step          " << format_fixed(rate.median_step_seconds, 4) << " s (median), "
            << format_fixed(rate.cpu_seconds_per_step, 3) << " s of processor time\n"
            << "tokens/s      " << format_fixed(rate.tokens_per_second, 1) << "\n"
            << "model GFLOP/s " << format_fixed(rate.model_flops_per_step / rate.median_step_seconds / 1e9, 1)
            << ", " << format_fixed(100 * rate.matmul_share(), 1) << "% of the measured matmul rate (fp32 "
            << format_fixed(rate.matmul_fp32_flops_per_second / 1e9, 1) << ", the run's dtype "
            << format_fixed(rate.matmul_precision_flops_per_second / 1e9, 1) << " GFLOP/s)\n";
  if (const auto mfu = rate.mfu())
    std::cout << "MFU           " << format_fixed(100 * *mfu, 1) << "% of the published rate\n";
  std::cout << "exchanges     " << format_fixed(rate.exchange_seconds, 4) << " s a step, "
            << format_bytes(rate.sent_bytes) << " sent by a rank\n"
            << "peak memory  ";
  for (const int64_t bytes : rate.peak_memory_bytes) std::cout << " " << format_bytes(bytes);
  std::cout << "\nlosses       ";
  for (const double loss : rate.losses) std::cout << " " << format_fixed(loss, 6);
  std::cout << std::endl;
}

int run_step(const std::vector<std::string>& arguments) {
  BenchStepFlags flags;
  OptionParser parser("bench step",
                      "Times optimizer steps (AdamW, synthetic tokens), alone or under trireme launch; a "
                      "step lasts as long as its slowest rank.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  std::optional<HardwareProfile> hardware;
  if (!flags.predict.empty()) hardware = read_hardware(flags.predict.string());
  if (flags.simulate_ranks) return run_simulated_step(flags, parser, hardware);
  const RankIdentity identity = rank_identity_from_environment();
  check_sharing_ranks(parser, identity.size);
  const std::filesystem::path model_dir = find_model_directory(flags.model);
  EngineOptions options = flags.resolve(identity);
  const c10::DeviceGuard guard(options.device);
  const auto world = join_run(identity, options, flags.process);
  flags.process.share_sequence(options, parser, world->common_machine_ranks(), model_dir);
  const auto engine = assemble(*world, model_dir, options);
  std::optional<PredictedStep> predicted;
  const auto predict = [&] {
    if (hardware)
      predicted = predict_step(*engine, *hardware, flags.measure.batch, flags.measure.sequence_tokens);
  };
  predict();  // a profile that does not fit is refused before the steps
  const StepRate rate = measure_step_rate(*engine, flags.measure);
  predict();  // again, with the memory that they took
  if (identity.rank != 0) return 0;
  if (flags.memory_report)
    std::cerr << memory_report(engine->memory_account()->state(),
                               memory_forecast(engine->forecast_inputs(flags.measure.batch,
                                                                       flags.measure.sequence_tokens)))
              << std::flush;
  if (!flags.json) {
    print_text(rate, engine->description());
    if (predicted) std::cout << predicted->text(rate.median_step_seconds) << std::flush;
    return 0;
  }
  Json line = rate.to_json();
  line.update({{"what", "trireme"},
               {"dtype", name_of(options.precision)},
               {"seq", flags.measure.sequence_tokens},
               {"batch", flags.measure.batch},
               {"ranks", identity.size},
               {"threads", at::get_num_threads()},
               {"recompute", name_of(engine->options().recompute.policy)},
               {"keep_fraction", engine->options().recompute.keep_fraction},
               {"keep_qkv_fraction", engine->options().recompute.keep_qkv_fraction},
               {"keep_mlp_fraction", engine->options().recompute.keep_mlp_fraction},
               {"engine", engine->description()},
               {"machine", benchmarked_machine()}});
  if (predicted) line["predicted"] = predicted->to_json();
  std::cout << line.dump() << std::endl;
  return 0;
}

int run_matmul(const std::vector<std::string>& arguments) {
  BenchMatmulFlags flags;
  OptionParser parser("bench matmul", "Times matrix products in fp32 and bf16 with this process's threads.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  EngineOptions options;
  flags.process.prepare(options, rank_identity_from_environment());
  const c10::DeviceGuard guard(options.device);
  Json line = {{"device", options.device.str()},
               {"threads", at::get_num_threads()},
               {"machine", benchmarked_machine()}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const char* name = dtype == at::kFloat ? "fp32" : "bf16";
    if (dtype == at::kBFloat16 && options.device.is_cpu() && !cpu_has_bf16_matmul()) {
      if (!flags.json)
        std::cout << "bf16: multiplied in fp32, for this processor has no faster instructions for it\n";
      continue;
    }
    for (const MatmulRate& rate : measure_matmul_rates(options.device, dtype, flags.seconds)) {
      const std::string shape = cat(rate.rows, "x", rate.inner, "x", rate.columns);
      line["gflops"][name][shape] = rate.flops_per_second / 1e9;
      if (!flags.json)
        std::cout << name << " " << shape << ": " << format_fixed(rate.flops_per_second / 1e9, 1)
                  << " GFLOP/s\n";
    }
  }
  if (flags.json) std::cout << line.dump() << "\n";
  std::cout << std::flush;
  return 0;
}

// The program beside this one, which measures other systems' exchanges as well, takes this process over.
int run_bench_comm(const std::vector<std::string>& arguments) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("trireme-bench-comm");
  std::vector<std::string> command{program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  throw ConfigError(cat("trireme bench comm: cannot run ", program,
                        ", which is built beside trireme: ", std::strerror(errno)));
}

}  // namespace

void BenchStepFlags::declare(OptionList& list) {
  list.text("model", model, "model folder, or org/name in the Hugging Face cache").required();
  list.count("seq", measure.sequence_tokens, from_to(2, kMostTokens), "tokens of a sample; takes 16k");
  list.count("batch", measure.batch, from_to(1, 1 << 20), "samples of a step, for each data-parallel group");
  list.count("steps", measure.steps, at_least(1), "steps in all");
  list.count("warmup", measure.warmup, at_least(0), "first steps, left out of the medians");
  list.count("seed", measure.seed, at_least(0), "of the tokens");
  list.real("learning_rate", measure.learning_rate, above(0), "AdamW's");
  list.flag("json", json, "print one line of JSON");
  list.flag("memory_report", memory_report,
            "print what each part of memory took, beside its formula, on stderr");
  list.path(
      "predict", predict,
      "profile of trireme bench hardware, or a name of trireme plan --gpu: print the planner's seconds and "
      "bytes beside the measured ones");
  list.count(
      "simulate_ranks", simulate_ranks, from_to(2, kMostRanks),
      "measure memory and compute of one of so many ranks on this device alone, local copies in place of "
      "exchanges; the network's time is modelled by --predict");
  process.list(list);
  list_update_options(list, engine);
  list_engine_options(list, engine);
}

EngineOptions BenchStepFlags::resolve(const RankIdentity& identity) const {
  EngineOptions options = engine;
  process.prepare(options, identity);
  options.planned_batch = {measure.batch, measure.sequence_tokens};
  return options;
}

void BenchMatmulFlags::declare(OptionList& list) {
  list.real("seconds", seconds, above(0), "for each shape");
  list.flag("json", json, "print one line of JSON");
  process.list_device(list);
}

Json benchmarked_machine() {
  return {{"processor", cpu_model_name()},
          {"cores", cpu_cores()},
          {"vector_instructions", at::get_cpu_capability()},
          {"bf16_matmul_instructions", cpu_has_bf16_matmul()}};
}

int run_bench(const std::vector<std::string>& arguments) {
  return run_one_of("bench",
                    {{"step", "optimizer steps", run_step},
                     {"matmul", "matrix products", run_matmul},
                     {"comm", "bytes and seconds of a layer's exchanges", run_bench_comm},
                     {"hardware", "every rate of this machine, for trireme plan", run_bench_hardware}},
                    arguments);
}

}  // namespace trireme
