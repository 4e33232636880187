#include "trireme/cli/validate.h"

#include <iostream>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/stop_signal.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/plan/first_run.h"

namespace trireme {

void ValidateFlags::declare(OptionList& list) {
  list.count("length", how.sequence_tokens, from_to(0, kMostTokens),
             cat("tokens of a sample of the steps; 0: ", format_count(kSmokeTokens),
                 ", or the run's longest where that is shorter"));
  list.count("steps", how.steps, from_to(1, 1e6), "over which the loss is looked at");
  list.real("tolerance", how.tolerance, above(0), "of each tensor's largest entry, against one rank");
  list.real("least_matmul_share", how.least_matmul_share, from_to(0, 1),
            "of the measured matmul rate, that model FLOPs must reach");
  list.real("matmul_seconds", how.matmul_seconds, above(0), "spent on each shape of the matmul rate");
  list.flag("skip_one_rank", how.skip_one_rank,
            "leave out the comparison with one rank, which holds the whole model in fp32 by itself");
  list.flag("json", json, "print JSON");
  train.declare(list);
}

int run_validate(const std::vector<std::string>& arguments) {
  ValidateFlags flags;
  OptionParser parser("validate",
                      "Checks a run before it begins: the flags of train, and how to check. Exits 0 when no "
                      "check failed, 1 when one did.");
  flags.declare(parser);
  RankIdentity identity;
  std::vector<std::string> notes;
  const auto read_files = [&] {
    identity = rank_identity_from_environment();
    notes = flags.train.read_files(parser, identity.size);
  };
  if (!parser.parse(arguments, read_files)) return 0;
  if (flags.train.dry_run)
    throw ConfigError("--dry_run is of train, and validate does it as its check of memory; leave it out");
  refuse_unread_flags(parser, flags.train.options);
  refuse_unread_flag(parser, flags.how.skip_one_rank, "tolerance",
                     "with --skip_one_rank, which compares nothing; give it without that");
  end_on_stop_request();
  TrainOptions options = flags.train.resolve(identity);
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(identity, options.engine, flags.train.process);
  flags.train.process.share_sequence(options.engine, parser, world->common_machine_ranks(),
                                     options.model_dir);
  ValidateHooks hooks;
  if (identity.rank == 0) {
    hooks.note = [](const std::string& text) { std::cerr << text << std::endl; };
    for (const std::string& note : notes) hooks.note(note);
    if (!flags.json)
      hooks.on_check = [](const Check& check) {
        std::cout << name_of(check.verdict) << "  " << check.name << ": " << check.reason << std::endl;
      };
  }
  const Validation validation = validate(*world, options, flags.how, hooks);
  if (identity.rank == 0 && flags.json) std::cout << validation.to_json().dump(1) << std::endl;
  return validation.passed() ? 0 : 1;
}

}  // namespace trireme
