#include "trireme/cli/verify.h"

#include <iostream>
#include <mutex>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/cli/model_directory.h"
#include "trireme/comm/thread_world.h"
#include "trireme/eval/verify_reference.h"
#include "trireme/model/model_config.h"

namespace trireme {

void VerifyFlags::declare(OptionParser& parser) {
  parser.text("model", model, "model folder, or org/name in the Hugging Face cache");
  parser.required("model");
  parser.path("reference", reference, "file made by tools/hf_reference.py");
  parser.required("reference");
  parser.choice("precision", precision, {"fp32", "bf16", "fp16"}, "of the computation");
  parser.real("tolerance", tolerance, "of each tensor's largest entry");
  parser.count("ranks_as_threads", ranks_as_threads,
               "ranks within this process; sets --sp where no degree is given");
  parser.count("rows", rows, "worst tensors to print");
  parser.flag("json", json, "print JSON, with every tensor");
  engine.declare(parser);
}

EngineOptions VerifyFlags::resolve(const OptionParser& parser, const RankPlace& place) const {
  if (!(tolerance > 0)) throw ConfigError(cat("--tolerance is ", tolerance, "; expected a number above 0"));
  const bool threads = parser.given("ranks_as_threads");
  if (threads && place.size > 1)
    throw ConfigError("--ranks_as_threads runs all ranks in one process; do not give it under a launcher");
  if (threads && ranks_as_threads < 1) throw ConfigError("--ranks_as_threads is 0; expected 1 or more");
  EngineOptions options = engine.resolve(place);
  options.precision = parse_precision(precision);
  return options;
}

int run_verify(const std::vector<std::string>& arguments) {
  VerifyFlags flags;
  OptionParser parser(
      "verify",
      "Compares loss, logits and every gradient with a reference file. Exits 0 when each differs by at "
      "most --tolerance of its largest entry, 1 when not.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  const std::filesystem::path model_dir = find_model_directory(flags.model);
  const RankPlace place = place_from_environment();
  EngineOptions options = flags.resolve(parser, place);
  const c10::DeviceGuard guard(options.device);

  // Every rank takes part in the one sequence unless asked otherwise.
  const auto degrees_of = [&](int ranks, int machine_ranks) {
    if (parser.given("ulysses") || parser.given("ring") || parser.given("sp"))
      return flags.engine.degrees(parser, machine_ranks, model_dir);
    return choose_degrees(ranks, read_model_config(model_dir).num_attention_heads, machine_ranks);
  };
  VerifyResult result;
  if (flags.ranks_as_threads > 0) {
    const auto ranks = static_cast<int>(flags.ranks_as_threads);
    set_degrees(options, degrees_of(ranks, ranks));
    std::mutex mutex;
    run_ranks_as_threads(
        ranks,
        [&](World& world) {
          const VerifyResult of_rank =
              verify_reference(world, model_dir, flags.reference, options, flags.tolerance);
          const std::lock_guard<std::mutex> lock(mutex);
          result = of_rank;
        },
        flags.engine.timeout());
  } else {
    const auto world = join_run(place, options, flags.engine.timeout());
    const int machine_ranks = world->least_machine_ranks();
    set_degrees(options, degrees_of(world->size(), machine_ranks));
    result = verify_reference(*world, model_dir, flags.reference, options, flags.tolerance);
  }
  if (place.rank == 0)
    std::cout << (flags.json ? result.to_json().dump(1) + "\n" : result.table(static_cast<int>(flags.rows)))
              << std::flush;
  return result.passed() ? 0 : 1;
}

}  // namespace trireme
