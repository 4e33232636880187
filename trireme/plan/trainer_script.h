// A training script of the Hugging Face stack, as far as its text tells: its trainer, its arguments, its
// model. What it computes or reads from a command line is named, not guessed.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/python_source.h"

namespace trireme {

struct TrainerScript {
  std::string file;
  PythonSource source;
  size_t trainer = 0;                // of source.calls
  std::string trainer_class;         // "transformers.Trainer", "trl.SFTTrainer", "trl.DPOTrainer"
  bool wrapped = false;              // by with_sequence_parallel already
  std::optional<size_t> arguments;   // of source.calls: TrainingArguments, SFTConfig, DPOConfig
  std::string model;                 // of from_pretrained or model=; empty: not told
  std::vector<std::string> unknown;  // sentences: what was looked for and not found

  const PythonCall& trainer_call() const { return source.calls[trainer]; }
  // A keyword of the arguments' call; nullptr: not there.
  const PythonArgument* argument(const std::string& keyword) const;
  // The name of the longest sample's length; empty: Trainer has none.
  std::string length_keyword() const;
};

// Throws DataError (no Python), ConfigError: no trainer, or one that cannot share samples.
TrainerScript read_trainer_script(const std::string& text, const std::string& file);

}  // namespace trireme
