// `trireme plan`: the configuration for a model, a length and devices, before they are there. The options of
// train that are given are pinned; the others are chosen. Nothing is read but config.json, files of options
// and a hardware profile; of an encoder also whether its tokenizer has a mask token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/explain_oom.h"
#include "trireme/cli/option_parser.h"
#include "trireme/cli/plan_pages.h"
#include "trireme/cli/planned_model.h"
#include "trireme/engine/engine_options.h"
#include "trireme/plan/plan.h"
#include "trireme/plan/plan_files.h"

namespace trireme {

struct PlanFlags {
  std::string model;
  int64_t gpus = 1;
  std::string gpu;               // of the catalog, or the file of a profile
  int64_t gpus_per_machine = 0;  // 0: the profile's
  int64_t max_seq_length = 0;
  int64_t document_tokens = 0;
  Objective objective = Objective::throughput;
  std::string stages;
  int64_t tokens = 0;
  double target_tokens_per_second = 0;
  int64_t samples_per_step = 0;
  double memory_share = PlanRequest{}.memory_share;
  bool allow_disk = false;
  std::filesystem::path ds_config;
  std::filesystem::path output;
  bool json = false;
  PlanPages pages;
  ExplainFlags explain;
  std::optional<int64_t> sp, batch, accumulation;
  EngineOptions engine = {.optimizer = {.max_grad_norm = 1}};

  // Options of train that the plan does not choose: given as flags, or by --ds_config.
  TrainOptionValues passed_on;

  void declare(OptionList& list);
  // Within parse: what --run, --script and --ds_config say. Returns lines for a person.
  std::vector<std::string> read_files(OptionParser& parser);
  // After parse. Throws ConfigError, DataError.
  PlanRequest resolve(const OptionParser& parser, const PlannedModel& planned) const;
};

// 0: it fits; 1: nothing does.
int run_plan(const std::vector<std::string>& arguments);

}  // namespace trireme
