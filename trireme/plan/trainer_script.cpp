#include "trireme/plan/trainer_script.h"

#include <algorithm>
#include <array>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr std::array kTrainers = {"transformers.Trainer", "trl.SFTTrainer", "trl.DPOTrainer"};
constexpr std::array kArguments = {"transformers.TrainingArguments", "trl.SFTConfig", "trl.DPOConfig"};

bool is_wrapper(const std::string& callee) {
  return callee == "with_sequence_parallel" || callee.ends_with(".with_sequence_parallel");
}

// with_sequence_parallel(SFTTrainer, ...): the class within.
std::string wrapped_class(const PythonSource& source, const PythonCall& call) {
  return call.arguments.empty() ? "" : source.resolved(call.arguments.front().written);
}

void find_trainer(TrainerScript& script) {
  const PythonSource& source = script.source;
  std::string other;
  for (size_t i = 0; i < source.calls.size(); ++i) {
    const PythonCall& call = source.calls[i];
    const bool wraps = is_wrapper(call.callee);
    const std::string name = wraps ? wrapped_class(source, call) : source.resolved(call.callee);
    if (!contains(kTrainers, name)) {
      if (name.ends_with("Trainer") && (name.starts_with("trl.") || name.starts_with("transformers.")))
        other = name;
      continue;
    }
    if (!script.trainer_class.empty())
      throw ConfigError(cat(script.file, " makes a trainer in line ",
                            source.line_of(script.trainer_call().begin), " and in line ",
                            source.line_of(call.begin),
                            "; expected one. Give a script with the one that is to be changed"));
    script.trainer = i;
    script.trainer_class = name;
    script.wrapped = wraps;
  }
  if (!script.trainer_class.empty()) return;
  if (!other.empty())
    throw ConfigError(cat(script.file, " makes a ", other,
                          "; expected Trainer of transformers, or SFTTrainer or DPOTrainer of trl: "
                          "others generate text, or score samples whole"));
  throw ConfigError(cat(
      script.file,
      " makes no Trainer of transformers and no SFTTrainer or DPOTrainer of trl by a name that it imports; "
      "for a loop of its own see docs/huggingface.md (trireme.parallelize)"));
}

// What the trainer is given as its second argument; null where the script does not show it.
const PythonArgument* given_arguments(const TrainerScript& script) {
  const PythonCall& trainer = script.trainer_call();
  if (script.wrapped) return nullptr;
  if (const PythonArgument* by_name = trainer.find("args")) return by_name;
  const bool by_position = trainer.arguments.size() > 1 && trainer.arguments[1].keyword.empty();
  return by_position ? &trainer.arguments[1] : nullptr;
}

// The call stands there, or is what the name there was given.
bool makes(const PythonCall& call, const PythonArgument& given) {
  return call.begin == given.value_begin || contains(call.names, given.written);
}

void find_arguments(TrainerScript& script) {
  const PythonSource& source = script.source;
  const PythonArgument* const given = given_arguments(script);
  std::vector<size_t> found;
  std::string lines;
  for (size_t i = 0; i < source.calls.size(); ++i)
    if (contains(kArguments, source.resolved(source.calls[i].callee))) {
      found.push_back(i);
      lines += cat(lines.empty() ? "" : " and ", source.line_of(source.calls[i].begin));
    }
  const bool are_several = found.size() > 1;
  if (are_several)
    std::erase_if(found, [&](size_t i) { return given == nullptr || !makes(source.calls[i], *given); });
  if (found.size() == 1) script.arguments = found.front();
  if (script.arguments) return;
  if (are_several)
    throw ConfigError(
        cat(script.file, " makes arguments of a trainer in lines ", lines,
            ", and it does not show which of them the trainer is given; expected args=NAME of one "
            "of them"));
  const auto parser = std::ranges::find_if(source.calls, [&](const PythonCall& call) {
    const std::string name = source.resolved(call.callee);
    return name.ends_with("ArgumentParser") || name.ends_with(".TrlParser");
  });
  script.unknown.push_back(
      parser != source.calls.end()
          ? cat("the trainer's arguments: line ", source.line_of(parser->begin),
                " reads them from the command line. Give their values "
                "there, as the lines below have them")
          : std::string("the trainer's arguments: no call of TrainingArguments, SFTConfig or DPOConfig"));
}

void find_model(TrainerScript& script) {
  const PythonSource& source = script.source;
  const PythonArgument* found = nullptr;
  for (const PythonCall& call : source.calls) {
    const bool reads =
        call.callee.ends_with(".from_pretrained") && call.callee.find("Tokenizer") == std::string::npos &&
        call.callee.find("Processor") == std::string::npos && call.callee.find("Config") == std::string::npos;
    if (!reads || call.arguments.empty()) continue;
    const PythonArgument* by_name = call.find("pretrained_model_name_or_path");
    found = by_name != nullptr ? by_name : &call.arguments.front();
    break;
  }
  if (found == nullptr) {
    const PythonCall& trainer = script.trainer_call();
    found = trainer.find("model");
    if (found == nullptr && !script.wrapped && !trainer.arguments.empty() &&
        trainer.arguments.front().keyword.empty())
      found = &trainer.arguments.front();
    if (found != nullptr && !(found->value && found->value->is_string())) found = nullptr;
  }
  if (found != nullptr && found->value && found->value->is_string()) {
    script.model = found->value->get<std::string>();
  } else {
    script.unknown.push_back(
        found != nullptr
            ? cat("the model: line ", source.line_of(found->begin), " names it by ", found->written)
            : std::string("the model: no from_pretrained(\"...\") and no model=\"...\""));
  }
}

}  // namespace

const PythonArgument* TrainerScript::argument(const std::string& keyword) const {
  return arguments ? source.calls[*arguments].find(keyword) : nullptr;
}

std::string TrainerScript::length_keyword() const {
  if (trainer_class == "transformers.Trainer") return "";
  return argument("max_seq_length") != nullptr ? "max_seq_length" : "max_length";
}

TrainerScript read_trainer_script(const std::string& text, const std::string& file) {
  TrainerScript script;
  script.file = file;
  script.source = read_python_source(text, file);
  find_trainer(script);
  find_arguments(script);
  find_model(script);
  return script;
}

}  // namespace trireme
