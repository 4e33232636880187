// `trireme plan --explain_oom`: why a run does not fit, and whole sets of changes after which it does. The
// run is told by flags, by --ds_config, or by the folder of a run; what it printed may be given too.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/plan/plan_request.h"
#include "trireme/train/stage_plan.h"

namespace trireme {

struct ExplainFlags {
  std::string message;        // a file, or "-"; empty where the flag is given alone: no message
  std::filesystem::path run;  // folder of a run of trireme train

  void declare(OptionList& list);
  bool asked(const OptionParser& parser) const { return parser.given("explain_oom"); }
  // Within parse: the run's options, which flags beat; of a run with --context_stages those of the stage that
  // it was in by its metrics, else of its fullest. `topology_of` its model is asked then. Returns lines for a
  // person.
  std::vector<std::string> read_run(
      OptionParser& parser, const std::function<RunTopology(const std::string& model)>& topology_of) const;
};

// Options that are not given are those that `trireme train` would take. 0: it fits, or a set of changes does;
// 1: nothing does. Throws ConfigError, and DataError where the message tells of no memory.
int explain_oom(const ExplainFlags& flags, PlanRequest request, bool json);

}  // namespace trireme
