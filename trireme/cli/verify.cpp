#include "trireme/cli/verify.h"

#include <iostream>
#include <mutex>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/comm/thread_world.h"
#include "trireme/eval/verify_reference.h"

namespace trireme {
namespace {

// 16-bit values round each operation, and sums in another order round otherwise: 32 times the spacing of
// their numbers at 1 passes, which shows gross errors only.
double usual_tolerance(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return 32.0 / (1 << 7);
    case Precision::fp16:
      return 32.0 / (1 << 10);
    case Precision::fp32:
      break;
  }
  return 1e-4;
}

}  // namespace

void VerifyFlags::declare(OptionList& list) {
  list.text("model", model, "model folder, or org/name in the Hugging Face cache").required();
  list.path("reference", reference, "file made by tools/hf_reference.py").required();
  list.choice("precision", engine.precision, "of the computation");
  list.real("tolerance", tolerance, above(0),
            "of each tensor's largest entry; not given: 1e-4 in fp32, 0.25 in bf16, 0.03 in fp16");
  list.count("ranks_as_threads", ranks_as_threads, from_to(1, kMostRanks),
             "ranks within this process; sets --sp where no degree is given");
  list.count("rows", rows, at_least(0), "worst tensors to print");
  list.flag("json", json, "print JSON, with every tensor");
  process.list(list);
  list_engine_options(list, engine);
}

EngineOptions VerifyFlags::resolve(const RankIdentity& identity) const {
  if (ranks_as_threads && identity.size > 1)
    throw ConfigError("--ranks_as_threads runs all ranks in one process; do not give it under a launcher");
  EngineOptions options = engine;
  process.prepare(options, identity);
  return options;
}

int run_verify(const std::vector<std::string>& arguments) {
  VerifyFlags flags;
  OptionParser parser("verify",
                      "Compares loss, logits and every gradient with a reference file. Exits 0 when each "
                      "differs by at most --tolerance of its largest entry, 1 when not.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  refuse_unread_flag(parser, flags.ranks_as_threads.has_value(), "ddp_backend",
                     "with --ranks_as_threads, whose ranks share memory; give it without that");

  const std::filesystem::path model_dir = find_model_directory(flags.model);
  const RankIdentity identity = rank_identity_from_environment();
  EngineOptions options = flags.resolve(identity);
  const c10::DeviceGuard guard(options.device);

  // Every rank takes part in the one sequence unless asked otherwise.
  const auto share_sequence = [&](int ranks, int machine_ranks) {
    check_sharing_ranks(parser, ranks, "", flags.ranks_as_threads ? "--ranks_as_threads" : "");
    if (!parser.given("ulysses") && !parser.given("ring") && !flags.process.sp) flags.process.sp = ranks;
    flags.process.share_sequence(options, parser, machine_ranks, model_dir);
  };
  const double tolerance = flags.tolerance.value_or(usual_tolerance(options.precision));
  VerifyResult result;
  if (flags.ranks_as_threads) {
    const auto ranks = static_cast<int>(*flags.ranks_as_threads);
    share_sequence(ranks, ranks);
    std::mutex mutex;
    run_ranks_as_threads(
        ranks,
        [&](World& world) {
          const VerifyResult of_rank =
              verify_reference(world, model_dir, flags.reference, options, tolerance);
          const std::lock_guard<std::mutex> lock(mutex);
          result = of_rank;
        },
        flags.process.timeout());
  } else {
    const auto world = join_run(identity, options, flags.process);
    share_sequence(world->size(), world->common_machine_ranks());
    result = verify_reference(*world, model_dir, flags.reference, options, tolerance);
  }
  if (identity.rank == 0)
    std::cout << (flags.json ? result.to_json().dump(1) + "\n" : result.table(static_cast<int>(flags.rows)))
              << std::flush;
  return result.passed() ? 0 : 1;
}

}  // namespace trireme
