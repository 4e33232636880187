// The one decider of what a resumed run may differ in from the run that saved the checkpoint:
//
//   option      by its ResumeRule (base/option_list.h): free, told, or refused
//   data        by content (data_sources.h): other tokens are refused
//   length      of the stage that the run is in: another one cuts other samples, and is refused
//   model       by what its config.json decides (model/computed_fields.h), and its LoRA: others are refused
//   ranks       free to differ; another number is told
//   batch       another global batch is told, and refused where epochs or tokens give the steps: those that are
//               done would count as steps of the other size, in the data and in the schedule
//
// What is refused because the order of samples would be another one is done with --resume_with_new_data:
// weights, optimizer and step go on, and the data begins at its beginning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

// What is compared. Data is rank 0's to know: null elsewhere.
struct RunFacts {
  Json options;       // to_json(TrainOptions)
  Json train_source;  // describe_source; null: not known (another program's run)
  Json model;         // computed_fields, and "lora" (model/lora_files.h)
  int64_t ranks = 0;
  int64_t sequence_tokens = 0;      // of the stage that goes on; 0: a stage begins, or nothing goes on
  bool steps_follow_batch = false;  // those done so far (StagePlan::counted_stage)
  std::string options_origin = "this run's options";  // where they were read, for messages
};

struct ResumeDecision {
  std::vector<std::string> told;  // "learning_rate 0.0001 -> 5e-05"
  bool data_anew = false;         // the loader begins at the beginning
};

// Throws ConfigError that lists all that is refused, and what to do. `new_data`: --resume_with_new_data.
ResumeDecision decide_resume(const RunFacts& before, const RunFacts& now, bool new_data);

// Samples of one optimizer step over all ranks. DataError for numbers that no run has.
int64_t global_batch_samples(const RunFacts& run);
// The --gradient_accumulation_steps with which this run takes as many samples a step as the one before
// (--keep_global_batch). ConfigError where none does.
int64_t accumulation_to_keep(const RunFacts& before, const RunFacts& now);

}  // namespace trireme
