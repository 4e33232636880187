#include "trireme/train/run_records.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

RunRecords::RunRecords(const RunDirectory& run, std::optional<int64_t> last_step,
                       const std::filesystem::path& events, std::function<void(const std::string&)> note)
    : note_(std::move(note)),
      metrics_file_(run.metrics()),
      events_folder_(events),
      metrics_(run.metrics(), last_step.value_or(-1), note_) {
  if (!last_step) run.remove_events();
  if (!events.empty()) events_.emplace(events, last_step.value_or(0) + 1);
}

void RunRecords::keep(const Json& record) {
  if (const std::string problem = metrics_.write(record);
      !problem.empty() && !std::exchange(metrics_told_, true))
    note_(cat("warning: cannot write to ", metrics_file_.string(), ": ", problem,
              "; training goes on, and lines may be missing"));
  if (!events_) return;
  if (const std::string problem = events_->write(record);
      !problem.empty() && !std::exchange(events_told_, true))
    note_(cat("warning: cannot write TensorBoard's event file in ", events_folder_.string(), ": ", problem,
              "; training goes on, and points are left out"));
}

}  // namespace trireme
