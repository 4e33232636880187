#include "trireme/train/run_records.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

RunRecords::RunRecords(const RunDirectory& run, std::optional<int64_t> last_step,
                       const std::filesystem::path& events, std::function<void(const std::string&)> note,
                       LastEvaluation evaluation, double look_seconds)
    : note_(std::move(note)),
      metrics_file_(run.metrics()),
      events_folder_(events),
      metrics_(run.metrics(), last_step.value_or(-1), note_, look_seconds, evaluation) {
  if (!last_step) run.remove_events();
  if (!events.empty()) events_.emplace(events, last_step.value_or(0) + 1, look_seconds);
}

void RunRecords::keep(const Json& record) {
  tell_once(cat("to ", metrics_file_.string()), metrics_.write(record), "lines may be missing");
  if (events_)
    tell_once(cat("TensorBoard's event file in ", events_folder_.string()), events_->write(record),
              "points are left out");
}

void RunRecords::tell_once(const std::string& what, const std::string& problem, const char* lost) {
  if (problem.empty() || !told_.insert(cat(what, problem)).second) return;
  note_(cat("warning: cannot write ", what, ": ", problem, "; training goes on, and ", lost));
}

}  // namespace trireme
