// A run's folder and the checkpoints in it. Nothing here is collective; only rank 0 changes the folder.
//
//   OUTPUT_DIR/config.json               the run, every option resolved
//   OUTPUT_DIR/metrics.jsonl             one line a step
//   OUTPUT_DIR/runs/events.out.tfevents* the same for TensorBoard, a file for each process that went on
//   OUTPUT_DIR/data/train-DIGEST.bin     tokens of a text, and .idx (data_sources.h)
//   OUTPUT_DIR/data/sources.json         checksums of the files of a text (remembered_checksums.h)
//   OUTPUT_DIR/run.lock                  the process that writes here (run_lock.h)
//   OUTPUT_DIR/checkpoints/step-N/       whole checkpoints only
//   OUTPUT_DIR/checkpoints/step-N.tmp*   being written, or left by a killed run: never read
//   OUTPUT_DIR/checkpoints/abandoned-step-N   later than the resumed step: never read; removed by clear()
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/run_folder.h"

namespace trireme {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
  int64_t checked_bytes = 0;  // that this rank read to verify it
};

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}

  const std::filesystem::path& path() const { return output_dir_; }
  std::filesystem::path checkpoints() const { return output_dir_ / kCheckpointsFolder; }
  std::filesystem::path metrics() const { return output_dir_ / "metrics.jsonl"; }
  std::filesystem::path events() const { return output_dir_ / "runs"; }
  std::filesystem::path data() const { return output_dir_ / "data"; }
  std::filesystem::path sources() const { return data() / "sources.json"; }
  std::filesystem::path config() const { return output_dir_ / "config.json"; }
  std::filesystem::path checkpoint(int64_t step) const;
  std::filesystem::path temporary(int64_t step) const;

  // By step, oldest first, without temporaries. Empty if there is no folder; DataError if it cannot be read.
  std::vector<CheckpointEntry> list() const;

  // Makes the folders and removes the remains of killed saves, and of text that was being tokenized.
  // DataError when the folder cannot be written.
  void prepare() const;
  void remove_stale() const;
  // Gives temporary(step) its final name, which appears at once. An earlier checkpoint of this step, which is
  // broken (else this run would not save it again), is removed first.
  void publish(int64_t step) const;
  // Removes the oldest checkpoints until at most `limit` are left (0: no limit), never those of the steps
  // `saved` and `best`: both stay, however small the limit. Abandoned ones do not count.
  void keep_newest(int64_t limit, int64_t saved, std::optional<int64_t> best) const;
  // Renames the checkpoints of steps after `step` to abandoned-step-N (with .2, .3, ... where the name is
  // taken), and returns the new names.
  std::vector<std::string> abandon_after(int64_t step) const;
  // Removes the files of an earlier run that TensorBoard would read.
  void remove_events() const;
  // Removes an earlier run's checkpoints (abandoned ones too), metrics, TensorBoard events and tokens of text
  // in data/, except this run's inputs: `kept` are prefixes of sets, or files, by any path.
  void clear(const std::vector<std::filesystem::path>& kept) const;

 private:
  std::filesystem::path output_dir_;
};

}  // namespace trireme
