// What a training script of the Hugging Face stack changes for a plan: a unified diff for the Python package
// (docs/huggingface.md), the line that starts it, and what the diff cannot say.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/plan_request.h"
#include "trireme/plan/planned.h"
#include "trireme/plan/trainer_script.h"

namespace trireme {

// What a script says, as options of the planner and of train. Defaults of trl that differ from train's are
// among them.
struct ScriptValue {
  std::string option;
  Json value;
  std::string source;  // "train.py line 12: max_length"
};
std::vector<ScriptValue> script_values(const TrainerScript& script);

struct ScriptChanges {
  std::string diff;    // empty: the script stays as it is
  std::string launch;  // "torchrun --nproc_per_node 8 train.py"
  std::vector<std::string> notes;
};
ScriptChanges script_changes(const TrainerScript& script, const PlanRequest& request, const Planned& planned);

}  // namespace trireme
