// What the evaluations (`trireme eval loss`, answers, needles) share: the model, the ranks that compute, and
// the tokens that they read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/DeviceGuard.h>

#include "trireme/cli/owned_folder.h"
#include "trireme/cli/process_options.h"
#include "trireme/comm/agreement.h"
#include "trireme/engine/engine.h"
#include "trireme/train/sample_options.h"

namespace trireme {

struct EvaluationFlags {
  std::string model;
  std::filesystem::path checkpoint;
  bool json = false;
  EngineOptions engine = {.purpose = Purpose::evaluation};
  ProcessOptions process;

  void list_model(OptionList& list);
  void list_engine(OptionList& list);
  // After parse, for samples of up to `longest_tokens`; the model, and with it the degrees, need the world.
  // Throws ConfigError.
  EngineOptions resolve(const RankIdentity& identity, int64_t longest_tokens) const;
};

// Flags of the engine that an evaluation does not read. Throws ConfigError that names the flag.
void refuse_flags_of_backward(const OptionParser& parser);

// A joined run that evaluates one model.
class Evaluation {
 public:
  // Joins, and finds the model, which must be the same on all ranks. `options`: resolved flags. Collective.
  // Throws what join_run throws; ConfigError, DataError for a model or a checkpoint that cannot be evaluated.
  Evaluation(const EvaluationFlags& flags, const OptionParser& parser, EngineOptions options);
  // Before engine() and what follows it here. Collective. Throws what assemble throws.
  void read_weights();

  const std::filesystem::path& model_dir() const { return model_dir_; }
  const ModelConfig& config() const { return config_; }  // of that folder
  Engine& engine() { return *engine_; }
  bool reports() const { return world_->rank() == 0; }
  void note(const std::string& text) const;  // on rank 0
  // Files of this evaluation, in the system's temporary folder, for the ranks of this machine.
  const std::filesystem::path& scratch() const { return scratch_path_; }
  // The set at `input`, or that of its text, which rank 0 tokenizes for all. Collective. Throws as
  // open_tokens, and ConfigError for text where the ranks are on several machines.
  std::shared_ptr<const IndexedDataset> open(const std::filesystem::path& input,
                                             const SampleOptions& samples);
  // Warns where more tokens see each other than the model has positions.
  void check_positions(int64_t longest_tokens) const;
  LoaderOptions loader_options(const SampleOptions& samples, int64_t sequence_tokens);

 protected:
  Agreement agreement() { return {*group_, options_.device}; }
  const EngineOptions& options() const { return options_; }
  // Empty: a model's folder was given.
  const std::filesystem::path& checkpoint() const { return checkpoint_; }

 private:
  // Also sets checkpoint_, and the adapter that it may be. Collective.
  std::filesystem::path find_model(const EvaluationFlags& flags);

  EngineOptions options_;
  c10::DeviceGuard guard_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Group> group_;
  std::filesystem::path checkpoint_, model_dir_;
  ModelConfig config_;
  std::unique_ptr<Engine> engine_;
  std::optional<OwnedFolder> scratch_;  // rank 0
  std::filesystem::path scratch_path_;
};

}  // namespace trireme
