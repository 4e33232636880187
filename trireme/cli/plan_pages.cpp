#include "trireme/cli/plan_pages.h"

#include <algorithm>
#include <array>

#include "trireme/base/contains.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/input_file.h"
#include "trireme/base/joined.h"
#include "trireme/base/option_value.h"
#include "trireme/cli/train.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/plan/plan_html.h"
#include "trireme/plan/plan_spec.h"
#include "trireme/plan/script_changes.h"

namespace trireme {
namespace {

// The planner chooses them, or the launch line names them.
constexpr std::array kOthers = {
    "output_dir", "train_file", "deepspeed", "fsdp", "gradient_checkpointing", "parallelism_config"};

// A script may give both of kCountsOver.
void drop_what_does_not_count(TrainOptionValues& values) {
  for (const auto& [option, other] : kCountsOver) {
    const auto counting = std::ranges::find(values, option, &TrainOptionValues::value_type::first);
    if (counting != values.end() && counting->second.get<double>() > 0)
      std::erase_if(values, [name = other](const auto& value) { return value.first == name; });
  }
}

}  // namespace

void PlanPages::declare(OptionList& list) {
  list.path("html", html, "file for a page with the plan, its bars and its chart");
  list.path("spec", spec, "file for a one-page specification of the run in Markdown; alone: printed")
      .value_is_optional();
  list.path("script", script,
            "a script with Trainer, SFTTrainer or DPOTrainer: what to change in it is printed");
}

void PlanPages::read_script(OptionParser& parser, TrainOptionValues& passed_on) {
  if (script.empty()) return;
  constexpr int64_t kMostBytes = 4 << 20;
  read_ = read_trainer_script(InputFile(script, "a script of Python").whole(kMostBytes), script.string());
  Declared<TrainFlags> train("train");
  const std::vector<std::string> names = parser.names(), train_names = train.parser.names();
  for (const ScriptValue& value : script_values(*read_)) {
    if (contains(kOthers, value.option)) continue;
    const auto given_to = [&](OptionParser& options) {
      options.add_file_values(
          {{value.option, parse_option_value(options.find(value.option), value.value), value.source}},
          Precedence::before_counts);
    };
    try {
      const bool of_run = contains(train_names, value.option);
      if (value.option == "model" || (of_run && contains(names, value.option))) {
        given_to(parser);
      } else if (of_run) {
        given_to(train.parser);
        passed_on.emplace_back(value.option, train.parser.find(value.option).read());
        native_.push_back(value.option);
      } else {
        not_carried_.push_back(value.option);
      }
    } catch (const ConfigError&) {
      not_carried_.push_back(value.option);
    }
  }
  drop_what_does_not_count(passed_on);
  if (!read_->arguments) return;
  for (const PythonArgument* argument : read_->source.calls[*read_->arguments].keywords())
    if (!argument->value && !contains(kOthers, argument->keyword)) not_carried_.push_back(argument->keyword);
}

std::string PlanPages::script_text(const PlanRequest& request, const Plan& plan, Json& json) const {
  const ScriptChanges changes = script_changes(*read_, request, plan.best);
  const bool prefers = read_->trainer_class == "trl.DPOTrainer";
  json["script"] = {{"file", script.string()},   {"trainer", read_->trainer_class}, {"diff", changes.diff},
                    {"launch", changes.launch},  {"notes", changes.notes},          {"native", !prefers},
                    {"native_options", native_}, {"not_carried", not_carried_}};
  std::string text =
      cat("\n", script.string(), " (", read_->trainer_class, "):\n",
          changes.diff.empty() ? "nothing changes\n" : changes.diff, "start it by:\n", changes.launch, "\n");
  for (const std::string& note : changes.notes) text += cat("- ", note, "\n");
  if (prefers)
    return text + "natively: not; trireme train predicts the next token, it has no loss of preferences\n";
  text += "natively: the launch line above, with your data as TEXT, text or .jsonl (docs/data.md)\n";
  if (!native_.empty()) text += cat("- of the script it has: ", joined(native_), "\n");
  if (!not_carried_.empty()) text += cat("- not carried over: ", joined(not_carried_), "\n");
  return text;
}

std::string PlanPages::write(const OptionParser& parser, const PlanRequest& request, const Plan& plan,
                             const std::string& launch, int64_t trained_positions, Json& json) const {
  std::string text;
  if (read_) text += script_text(request, plan, json);
  if (parser.given("spec")) {
    const std::string page = plan_spec(request, plan, {launch, trained_positions});
    if (spec.empty()) {
      text += "\n" + page;
      json["spec"] = page;
    } else {
      replace_file(spec, page);
    }
  }
  if (!html.empty()) replace_file(html, plan_html(request, plan, launch));
  return text;
}

void PlanPages::check_stages(const OptionParser& parser) const {
  if (parser.given("spec") || read_)
    throw ConfigError(cat(read_ ? "--script" : "--spec",
                          " is for one length, --stages for several; give --max_seq_length"));
}

void PlanPages::write_stages(const PlanRequest& request, const std::vector<Plan>& plans,
                             const std::string& launch) const {
  if (!html.empty()) replace_file(html, stages_html(request, plans, launch));
}

}  // namespace trireme
