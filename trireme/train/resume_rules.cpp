#include "trireme/train/resume_rules.h"

#include <algorithm>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/field_differences.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/data_sources.h"
#include "trireme/train/train_options.h"

namespace trireme {
namespace {

std::map<std::string, ResumeRule> resume_rules() {
  const OptionList list = list_of_copy(TrainOptions(), list_train_options);
  std::map<std::string, ResumeRule> rules;
  for (const Option& option : list.options()) rules[option.name] = option.resume_rule;
  return rules;
}

void compare_options(const RunFacts& before, const RunFacts& now, ResumeDecision& decision,
                     std::vector<std::string>& other_order) {
  const std::map<std::string, ResumeRule> rules = resume_rules();
  for (const auto& [option, value] : now.options.items()) {
    // Another program's run knows nothing of an option: nobody can say that it differs.
    if (!before.options.contains(option)) continue;
    const Json& old = before.options[option];
    const ResumeRule rule = rules.at(option);
    if (old == value || rule == ResumeRule::free || rule == ResumeRule::by_content) continue;
    (rule == ResumeRule::told ? decision.told : other_order)
        .push_back(cat(option, " ", quotation(old), " -> ", quotation(value)));
  }
}

void compare_data(const RunFacts& before, const RunFacts& now, ResumeDecision& decision,
                  std::vector<std::string>& other_order) {
  if (now.train_source.is_null()) return;
  if (before.train_source.is_null()) {
    decision.told.push_back("the checkpoint does not tell what its data was; taken to be the same");
    return;
  }
  const std::string old_path = before.train_source.value("path", ""),
                    path = now.train_source.value("path", "");
  const std::vector<std::string> changes = source_changes(before.train_source, now.train_source);
  for (const std::string& change : changes) other_order.push_back(cat("the data at ", path, ": ", change));
  if (changes.empty() && old_path != path)
    decision.told.push_back(
        cat("train_file ", quotation(old_path), " -> ", quotation(path), " (the same content)"));
}

void compare_length(const RunFacts& before, const RunFacts& now, std::vector<std::string>& other_order) {
  if (before.sequence_tokens == 0 || now.sequence_tokens == 0) return;
  if (before.sequence_tokens != now.sequence_tokens)
    other_order.push_back(cat("tokens of a sequence in this stage (--max_seq_length, --context_stages) ",
                              before.sequence_tokens, " -> ", now.sequence_tokens));
}

// Where positions are only a bound, more of them change nothing.
bool bounds_positions_alone(const Json& model) {
  return model.value("rope_type", "") == "default";
}

std::vector<std::string> compare_model(const RunFacts& before, const RunFacts& now,
                                       ResumeDecision& decision) {
  std::vector<std::string> refused;
  for (const auto& [field, old, value] : field_differences(before.model, now.model)) {
    const std::string change = cat(field, " ", quotation(old), " -> ", quotation(value));
    if (field == "max_position_embeddings" && bounds_positions_alone(now.model) &&
        bounds_positions_alone(before.model))
      decision.told.push_back(cat("config.json: ", change));
    else
      refused.push_back(change);
  }
  return refused;
}

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += "\n  " + line;
  return text;
}

}  // namespace

ResumeDecision decide_resume(const RunFacts& before, const RunFacts& now, bool new_data) {
  ResumeDecision decision;
  std::vector<std::string> other_order;
  compare_options(before, now, decision, other_order);
  compare_data(before, now, decision, other_order);
  compare_length(before, now, other_order);
  const std::vector<std::string> model = compare_model(before, now, decision);
  if (!model.empty())
    throw ConfigError(
        cat("the model is not that of the checkpoint:", lines(model),
            "\nThe weights were trained with the former. Resume with that config.json, "
            "--rope_scaling, --rope_theta and LoRA; to train on with others (a longer context, say), "
            "begin a new run from this one by --continue_run"));
  if (!other_order.empty() && !new_data)
    throw ConfigError(
        cat("the checkpoint was trained on other samples than this run would go on with:", lines(other_order),
            "\nResume with the data and options as they were, choose another --output_dir for a new run, or "
            "give --resume_with_new_data: weights, optimizer and step then go on, and the data begins at its "
            "beginning"));
  decision.data_anew = !other_order.empty();
  for (const std::string& change : other_order) decision.told.push_back(change + " (the data begins anew)");
  if (before.ranks != now.ranks) decision.told.push_back(cat("ranks ", before.ranks, " -> ", now.ranks));
  if (!before.options.contains("per_device_train_batch_size")) return decision;
  const int64_t old_samples = global_batch_samples(before);
  const int64_t samples = global_batch_samples(now);
  if (old_samples == samples) return decision;
  if (now.steps_follow_batch)
    throw ConfigError(
        cat("the checkpoint's run took ", old_samples, " samples a step, and this run takes ", samples,
            ", so the steps done so far would be a different share of its epochs or tokens: give "
            "--keep_global_batch, or say the steps (--max_steps, or steps in --context_stages)"));
  decision.told.push_back(
      cat("global batch ", old_samples, " -> ", samples,
          " samples a step; --keep_global_batch keeps it, by --gradient_accumulation_steps"));
  return decision;
}

int64_t global_batch_samples(const RunFacts& run) {
  static_assert(kMostRanks <= kMostBatches, "the products below need 60 bits");
  const auto number = [&](const char* option, std::optional<int64_t> if_missing = std::nullopt) {
    return whole_number(run.options, option, {1, kMostBatches}, run.options_origin, if_missing);
  };
  return number("per_device_train_batch_size") * number("gradient_accumulation_steps") *
         std::max<int64_t>(1, run.ranks / (number("ulysses", 1) * number("ring", 1)));
}

int64_t accumulation_to_keep(const RunFacts& before, const RunFacts& now) {
  const int64_t wanted = global_batch_samples(before);
  RunFacts once = now;
  once.options["gradient_accumulation_steps"] = 1;
  const int64_t at_once = global_batch_samples(once);
  if (wanted % at_once != 0)
    throw ConfigError(
        cat("a step is to have ", wanted, " samples as before (--keep_global_batch), and these ranks take ",
            at_once,
            " at once (--per_device_train_batch_size times the groups of ranks that share a sample), which "
            "does not divide it; choose another --per_device_train_batch_size or number of ranks"));
  return wanted / at_once;
}

}  // namespace trireme
