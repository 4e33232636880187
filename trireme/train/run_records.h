// Where rank 0 keeps a run's numbers: metrics.jsonl and, if asked for, TensorBoard's events. A failure to
// write is reported once for each kind; training goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "trireme/base/json.h"
#include "trireme/train/metrics.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/tensorboard_events.h"

namespace trireme {

class RunRecords {
 public:
  // `last_step`: of the checkpoint that the run resumes from; nullopt: a fresh run, which begins both anew.
  // Empty `events`: no event files. Looks for removed files every `look_seconds`. Throws DataError.
  RunRecords(const RunDirectory& run, std::optional<int64_t> last_step, const std::filesystem::path& events,
             std::function<void(const std::string&)> note, LastEvaluation evaluation = LastEvaluation::kept,
             double look_seconds = 10);
  void keep(const Json& record);

 private:
  void tell_once(const std::string& what, const std::string& problem, const char* lost);

  std::function<void(const std::string&)> note_;
  std::filesystem::path metrics_file_, events_folder_;
  MetricsLog metrics_;
  std::optional<TensorBoardEvents> events_;
  std::set<std::string> told_;  // problems, with what had them
};

}  // namespace trireme
