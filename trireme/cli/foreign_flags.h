// Flags of other programs (Hugging Face's Trainer and run_clm.py, TRL, DeepSpeed, accelerate, torchrun,
// Megatron-LM), and what to give here instead, or why nothing is needed. One list answers an unknown flag and
// makes docs/from-huggingface.md; another answers values of their options that train does not take.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct ForeignFlags {
  std::vector<std::string> names;  // with underscores; all have the one answer
  std::string answer;              // one line, without a full stop
};
struct ForeignProgram {
  std::string name;  // a heading of the page
  std::vector<ForeignFlags> flags;
};
struct ForeignValues {
  std::vector<std::string> options;  // of train
  std::vector<std::string> values;   // empty: a share of the run, above 0 and below 1
  std::string answer;
};

const std::vector<ForeignProgram>& foreign_programs();
const std::vector<ForeignValues>& foreign_values();
// Of a flag that a command does not have; nothing where no other program has it either.
std::optional<std::string> foreign_flag_answer(const std::string& name);
// Throws ConfigError for a value of an option that has an answer here.
void refuse_foreign_value(const std::string& option, const std::string& value);

}  // namespace trireme
