#include "trireme/train/step_guards.h"

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_names.h"

namespace trireme {

OnNonfinite StepGuards::on_nonfinite() const {
  return nonfinite_in_a_row_ < kMostSkipped ? options_.on_nonfinite : OnNonfinite::stop;
}

std::optional<int64_t> StepGuards::nonfinite_steps() const {
  if (options_.on_nonfinite == OnNonfinite::stop) return std::nullopt;
  return nonfinite_steps_;
}

std::string StepGuards::skipped_before() const {
  if (nonfinite_in_a_row_ == 0) return "";
  return cat(". The ", nonfinite_in_a_row_, " steps before were skipped, and ", kMostSkipped,
             " in a row are the most");
}

GuardFinding StepGuards::look(int64_t step, const StepResult& result) {
  if (!result.not_finite.empty()) {
    ++nonfinite_steps_;
    ++nonfinite_in_a_row_;
    return {GuardVerdict::go_on,
            cat("step ", step, " was skipped and nothing was updated: the loss is ", result.loss,
                " and the gradient norm ", result.gradient_norm, ". ", result.not_finite, " (",
                nonfinite_in_a_row_, " in a row, ", kMostSkipped, " at most)")};
  }
  nonfinite_in_a_row_ = 0;
  if (options_.on_spike == OnSpike::off) return {};
  const std::optional<Spike> spike = spikes_.add(step, result.loss);
  if (!spike) return {};
  const std::string text = cat("a spike of the loss: ", spike->description(options_.spike_factor));
  if (options_.on_spike == OnSpike::warn) return {GuardVerdict::go_on, text};
  if (options_.on_spike == OnSpike::stop) return {GuardVerdict::stop, text};
  if (rolled_back_)
    return {GuardVerdict::stop, text + ". This run was rolled back once already, and is not again"};
  return {GuardVerdict::roll_back, text};
}

void StepGuards::saving(int64_t step) {
  if (calm()) good_step_ = step;
}

void StepGuards::rolled_back(const ResumedRun& run, const std::filesystem::path& checkpoint, int stage) {
  restore(run, checkpoint);
  if (run.stage != stage) stage_begins();
  rolled_back_ = true;
  rate_factor_ *= kRollbackRate;
}

Json StepGuards::state() const {
  const bool watches = options_.on_nonfinite != OnNonfinite::stop || options_.on_spike != OnSpike::off;
  if (!watches && nonfinite_steps_ == 0 && !rolled_back_) return nullptr;
  Json state = {{"nonfinite_steps", nonfinite_steps_},
                {"nonfinite_in_a_row", nonfinite_in_a_row_},
                {"spikes", spikes_.state()},
                {"rolled_back", rolled_back_},
                {"learning_rate_factor", rate_factor_}};
  if (good_step_) state["good_step"] = *good_step_;
  return state;
}

void StepGuards::restore(const ResumedRun& run, const std::filesystem::path& checkpoint) {
  const Json& state = run.guards;
  if (state.is_null()) return saving(run.step);
  const std::string origin = (checkpoint / kTrainerStateFile).string() + ": guards";
  nonfinite_steps_ = whole_number(state, "nonfinite_steps", {0, kLargestExactWhole}, origin);
  nonfinite_in_a_row_ = whole_number(state, "nonfinite_in_a_row", {0, kLargestExactWhole}, origin);
  spikes_.restore(object_value(state, "spikes", origin), origin + ": spikes");
  rolled_back_ = true_or_false(state, "rolled_back", origin);
  rate_factor_ = finite_number(state, "learning_rate_factor", 0, 1, origin);
  if (find_field(state, "good_step", origin) != nullptr)
    good_step_ = whole_number(state, "good_step", {0, kLargestExactWhole}, origin);
}

std::string after_a_spike(const std::string& checkpoint) {
  return cat(checkpoint.empty() ? std::string(". There is no checkpoint from before it: begin anew")
                                : cat(". The last checkpoint from before it is ", checkpoint,
                                      ": go on from it by --resume_from_checkpoint"),
             " with a lower --learning_rate, or with another --seed (and --resume_with_new_data) for other "
             "samples; --on_spike warn goes on through spikes");
}

}  // namespace trireme
