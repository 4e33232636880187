// A tiny model, a tokenized set and options for a training run of milliseconds, in a temporary folder.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/train/trainer.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"
#include "tests/support/json_lines.h"

namespace trireme::testing {

class TinyRun {
 public:
  // The set has `tokens` tokens in documents of 37: numbers that follow each other, so that there is
  // something to learn.
  explicit TinyRun(int64_t tokens = 400);

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path model() const { return folder() / "model"; }
  std::filesystem::path tokens() const { return folder() / "tokens"; }
  // A model with this tokenizer.json in place of the first, and a text to train on; the options name that
  // text.
  TrainOptions with_text(const std::string& output_name, const std::string& text,
                         const std::filesystem::path& tokenizer) const;
  // A model of finite weights with which the first step's loss is not finite.
  std::filesystem::path overflowing_model() const;
  std::filesystem::path text() const { return folder() / "text.txt"; }
  // SGD with a learning rate that moves things, two micro-batches of one sample, stages of 16 and 32 tokens.
  TrainOptions options(const std::string& output_name) const;

 private:
  TemporaryFolder folder_;
};

// What each step of a run reported on rank 0, by step.
using StepLosses = std::map<int64_t, double>;

struct TinyOutcome {
  TrainOutcome outcome;
  StepLosses losses;
  std::map<int64_t, StepRecord> records;
  std::string output;  // what rank 0 told
};

// Trains on `ranks` threads; asks to stop after `stop_after` steps (0: never). Attempt and launch are those
// of `like`.
TinyOutcome train_on_ranks(int ranks, const TrainOptions& options, int64_t stop_after = 0,
                           const RankIdentity& like = {});
// What such a run says that throws a Kind of error; "no error" for one that ends.
template <typename Kind = ConfigError>
std::string problem_of(const TrainOptions& options, int ranks = 1) {
  return message_of<Kind>([&] { train_on_ranks(ranks, options); });
}

// The steps of the checkpoints in a run's folder, ascending.
std::vector<int64_t> saved_steps(const TrainOptions& options);

// The lines of a run's metrics.jsonl.
inline std::vector<Json> metrics_of(const TrainOptions& options) {
  return json_lines(options.output_dir / "metrics.jsonl");
}

// "tensor name" -> bytes of its values, over all shards of a checkpoint or model folder.
std::map<std::string, std::string> tensors_of(const std::filesystem::path& dir);

}  // namespace trireme::testing
