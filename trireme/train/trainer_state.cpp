#include "trireme/train/trainer_state.h"

#include "trireme/shard/loss_scaler.h"
#include "trireme/train/checkpoint_names.h"

namespace trireme {

ResumedRun parse_trainer_state(const Json& state, const std::filesystem::path& checkpoint) {
  const std::string origin = (checkpoint / kTrainerStateFile).string();
  ResumedRun run;
  run.step = whole_number(state, "step", {0, kLargestExactWhole}, origin);
  run.stage = static_cast<int>(whole_number(state, "stage", {0, 1'000'000}, origin));
  run.tokens_seen = whole_number(state, "tokens_seen", {}, origin);
  run.overflowed_steps = whole_number(state, "overflowed_steps", {0, run.step}, origin, 0);
  run.evaluation_due = true_or_false(state, "evaluation_due", origin, false);
  if (find_field(state, "loader", origin) != nullptr) run.loader = object_value(state, "loader", origin);
  object_value(state, "options", origin);  // read by checkpoint_facts
  if (find_field(state, "length_change", origin) != nullptr)
    run.length_change = object_value(state, "length_change", origin);
  if (find_field(state, "guards", origin) != nullptr) run.guards = object_value(state, "guards", origin);
  if (const Json* best = find_field(state, "best", origin))
    run.best = parse_best_checkpoint(*best, origin + ": best");
  return run;
}

TrainingProgress parse_saved_progress(const Json& state, const std::string& origin) {
  return {whole_number(state, "optimizer_steps", {0, kLargestExactWhole}, origin),
          finite_number(state, "loss_scale", 0, kLargestLossScale, origin, 0.0),
          whole_number(state, "loss_scale_clean_steps", {0, kLargestExactWhole}, origin, 0)};
}

}  // namespace trireme
