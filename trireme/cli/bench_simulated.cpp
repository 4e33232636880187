#include "trireme/cli/bench_simulated.h"

#include <iostream>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/memory_report.h"
#include "trireme/measure/simulated_rank.h"

namespace trireme {

int run_simulated_step(const BenchStepFlags& flags, const OptionParser& parser,
                       const std::optional<HardwareProfile>& hardware) {
  const RankIdentity alone = rank_identity_from_environment();
  if (alone.size > 1)
    throw ConfigError(cat("--simulate_ranks ", *flags.simulate_ranks, " takes one process, and ", alone.size,
                          " were started; run trireme bench step without a launcher, or leave "
                          "--simulate_ranks out to measure these ranks"));
  refuse_unread_flag(parser, true, "ddp_backend",
                     "with --simulate_ranks, which exchange nothing; give it without that");
  const auto ranks = static_cast<int>(*flags.simulate_ranks);
  check_sharing_ranks(parser, ranks, "", "--simulate_ranks");
  const std::filesystem::path model_dir = find_model_directory(flags.model);
  EngineOptions options = flags.resolve(alone);
  const c10::DeviceGuard guard(options.device);
  prepare_host_memory(alone, options);
  SimulatedWorld world(ranks, hardware ? hardware->devices_per_machine : ranks,
                       options.device.is_cuda() ? BackendLibrary::nccl : BackendLibrary::post_board,
                       flags.process.timeout(),
                       std::make_shared<RankActivity>(RankActivity::from_environment()));
  flags.process.share_sequence(options, parser, world.common_machine_ranks(), model_dir);
  const auto engine = assemble(world, model_dir, options);
  const SimulatedRank simulated = measure_simulated_rank(world, *engine, flags.measure, hardware);
  if (!flags.json) {
    std::cout << simulated.text() << std::flush;
    return 0;
  }
  if (flags.memory_report) std::cerr << memory_report(simulated.memory, simulated.forecast) << std::flush;
  Json line = simulated.to_json();
  line.update({{"what", "trireme, simulated ranks"},
               {"dtype", name_of(options.precision)},
               {"seq", flags.measure.sequence_tokens},
               {"batch", flags.measure.batch},
               {"machine", benchmarked_machine()}});
  std::cout << line.dump() << std::endl;
  return 0;
}

}  // namespace trireme
