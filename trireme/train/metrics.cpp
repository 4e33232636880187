#include "trireme/train/metrics.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <system_error>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/plan/plan_json.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct KeptLines {
  std::string kept;
  int64_t dropped = 0;        // lines, strange ones included
  int64_t strange = 0;        // lines that are no records
  int64_t first_strange = 0;  // line, from 1
};

struct RecordKind {
  int64_t step = 0;
  bool is_evaluation = false;
};

std::optional<RecordKind> kind_of_record(const std::string& line) {
  try {
    const std::string origin = "a line";
    const Json record = parse_json(line, origin);
    return RecordKind{whole_number(record, "step", {}, origin), record.contains("eval_loss")};
  } catch (const DataError&) {
    return std::nullopt;
  }
}

// The last line of a killed run may be cut off, which needs no warning.
KeptLines kept_lines(const fs::path& file, int64_t last_step, LastEvaluation evaluation) {
  KeptLines lines;
  std::ifstream in(file, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool torn = in.eof();
    const std::optional<RecordKind> record = torn ? std::nullopt : kind_of_record(line);
    const bool is_made_again =
        record && record->is_evaluation && record->step == last_step && evaluation == LastEvaluation::due;
    if (record && record->step <= last_step && !is_made_again) {
      lines.kept += line + "\n";
      continue;
    }
    ++lines.dropped;
    if (record || torn || last_step < 0) continue;
    if (lines.strange++ == 0) lines.first_strange = number;
  }
  if (!in.eof()) throw DataError(cat(file.string(), ": cannot be read to its end"));
  return lines;
}

std::string open_metrics(const fs::path& file, FileDescriptor& log) {
  std::error_code made;  // the open below reports a failure
  fs::create_directories(file.parent_path(), made);
  log = FileDescriptor(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  return log.is_open() ? "" : std::strerror(errno);
}

}  // namespace

Json StepRecord::to_json() const {
  Json memory = bytes_json(peak_memory);
  for (const MemoryCategory category : kAllMemoryCategories)
    if (host_peak_memory[category] > 0) memory[cat("host_", name_of(category))] = host_peak_memory[category];
  Json record = {{"step", step},
                 {"epoch", epoch},
                 {"stage", stage},
                 {"sequence_length", sequence_tokens},
                 {"packing", packing},
                 {"target_tokens", target_tokens},
                 {"loss", loss},
                 {"grad_norm", gradient_norm},
                 {"learning_rate", learning_rate},
                 {"tokens_per_second", tokens_per_second},
                 {"mfu", mfu},
                 {"memory_bytes", memory_bytes},
                 {"memory_bytes_of_ranks", memory_bytes_of_ranks},
                 {"memory", memory},
                 {"seconds", seconds},
                 {"tokens_seen", tokens_seen},
                 {"eta_seconds", eta_seconds}};
  if (loss_scale > 0) record["loss_scale"] = loss_scale;
  if (loss_scale > 0 || nonfinite_steps) record["skipped"] = skipped;
  if (nonfinite_steps) record["nonfinite_steps"] = *nonfinite_steps;
  return record;
}

std::optional<int64_t> last_recorded_step(const fs::path& file) {
  std::optional<int64_t> step;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);)
    if (const auto record = kind_of_record(line)) step = record->step;
  return step;
}

MetricsLog::MetricsLog(const fs::path& file, int64_t last_step,
                       const std::function<void(const std::string&)>& note, double look_seconds,
                       LastEvaluation evaluation)
    : log_([file](FileDescriptor& log) { return open_metrics(file, log); },
           "it was removed; it is begun anew with this step", look_seconds) {
  if (is_there(file)) {
    const KeptLines lines = kept_lines(file, last_step, evaluation);
    if (lines.dropped > 0) replace_file(file, lines.kept);
    if (lines.strange > 0 && note)
      note(cat("warning: ", file.string(), ": left out ", lines.strange,
               lines.strange == 1 ? " line" : " lines", " that are no records of a step, the first one line ",
               lines.first_strange));
  }
  if (const std::string problem = log_.open(); !problem.empty())
    throw DataError(cat(file.string(), ": cannot open to write: ", problem));
}

}  // namespace trireme
