// The command line of a tiny run, and of one on two ranks of a launcher: for tests of processes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/train/tiny_run.h"

namespace trireme::testing {

using Words = std::vector<std::string>;

inline Words joined(const std::vector<Words>& parts) {
  Words all;
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

inline Words train_words(const TinyRun& run, const std::filesystem::path& output, const Words& more = {}) {
  return joined(
      {{"train", "--model_name_or_path", run.model().string(), "--train_file", run.tokens().string()},
       {"--output_dir", output.string(), "--max_seq_length", "32", "--logging_steps", "1"},
       {"--per_device_train_batch_size", "1", "--peak_tflops", "1", "--threads", "1"},
       more});
}

inline Words on_two_ranks(const Words& train) {
  return joined(
      {{"launch", "--nproc_per_node", "2", "--grace_seconds", "1", "--"}, train, {"--ulysses", "2"}});
}

}  // namespace trireme::testing
