// What `trireme plan` makes beside its text: a page, a one-page specification, and the changes of a training
// script, whose values it also plans with.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/plan/plan.h"
#include "trireme/plan/plan_files.h"
#include "trireme/plan/trainer_script.h"

namespace trireme {

struct PlanPages {
  std::filesystem::path html;
  std::filesystem::path spec;  // empty where it is given: to the output
  std::filesystem::path script;

  void declare(OptionList& list);
  // Within parse: a script's values, which flags beat. Those of train alone are added to `passed_on`.
  void read_script(OptionParser& parser, TrainOptionValues& passed_on);
  // Writes what is asked for. Returns what follows the plan's text, and adds to `json`.
  std::string write(const OptionParser& parser, const PlanRequest& request, const Plan& plan,
                    const std::string& launch, int64_t trained_positions, Json& json) const;
  // ConfigError: a specification and a script are of one length.
  void check_stages(const OptionParser& parser) const;
  void write_stages(const PlanRequest& request, const std::vector<Plan>& plans,
                    const std::string& launch) const;

 private:
  std::string script_text(const PlanRequest& request, const Plan& plan, Json& json) const;

  std::optional<TrainerScript> read_;
  std::vector<std::string> native_;       // options of train that are the script's
  std::vector<std::string> not_carried_;  // keywords that train has not
};

}  // namespace trireme
