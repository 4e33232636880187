// A run's folder and the checkpoints in it. Nothing here is collective; only rank 0 changes the folder.
//
//   OUTPUT_DIR/config.json               the run, every option resolved
//   OUTPUT_DIR/metrics.jsonl             one line a step
//   OUTPUT_DIR/runs/events.out.tfevents* the same for TensorBoard, a file for each process that went on
//   OUTPUT_DIR/checkpoints/step-N/       whole checkpoints only
//   OUTPUT_DIR/checkpoints/step-N.tmp*   one being written, or what a killed run left: never read
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
};

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}

  const std::filesystem::path& path() const { return output_dir_; }
  std::filesystem::path checkpoints() const { return output_dir_ / "checkpoints"; }
  std::filesystem::path metrics() const { return output_dir_ / "metrics.jsonl"; }
  std::filesystem::path events() const { return output_dir_ / "runs"; }
  std::filesystem::path config() const { return output_dir_ / "config.json"; }
  std::filesystem::path checkpoint(int64_t step) const;
  std::filesystem::path temporary(int64_t step) const;

  // By step, oldest first; temporaries are not listed.
  std::vector<CheckpointEntry> list() const;
  // The newest checkpoint that passes verify_checkpoint; `on_broken` is told of each newer one that does not.
  std::optional<CheckpointEntry> newest_valid(
      const std::function<void(const CheckpointEntry&, const std::string& problem)>& on_broken) const;

  // Makes the folders and removes what killed saves left. DataError when the folder cannot be written.
  void prepare() const;
  void remove_stale() const;
  // Removes the oldest checkpoints until at most `limit` are left (0: no limit).
  void keep_newest(int64_t limit) const;
  // Removes what TensorBoard would read of an earlier run.
  void remove_events() const;
  // Removes checkpoints, metrics and TensorBoard's events of an earlier run.
  void clear() const;

 private:
  std::filesystem::path output_dir_;
};

}  // namespace trireme
