#include <cstdlib>

#include "trireme/train/length_change.h"
#include "trireme/train/step_guards.h"
#include "trireme/train/trainer_state.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void state(Bytes input) {
  taken_or_refused("trainer_state.json", [&] {
    const Json json = parse_json(text_of(input), "step-4/trainer_state.json");
    const ResumedRun run = parse_trainer_state(json, "step-4");
    if (run.step < 0 || run.stage < 0 || run.tokens_seen < 0) std::abort();
    parse_saved_progress(json, "step-4/trainer_state.json");
    StepGuards(GuardOptions{}).restore(run, "step-4");
    if (!run.length_change.is_null()) LengthChange().restore(run.length_change, "step-4");
  });
}

}  // namespace trireme::fuzz
