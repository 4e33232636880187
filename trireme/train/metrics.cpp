#include "trireme/train/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/base/write_all.h"
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

std::string append_whole(int descriptor, std::string_view bytes) {
  const Written written = write_all(descriptor, bytes.data(), bytes.size());
  if (written.error == 0) return {};
  [[maybe_unused]] const int cut =
      ::ftruncate(descriptor, ::lseek(descriptor, 0, SEEK_END) - static_cast<off_t>(written.bytes));
  return std::strerror(written.error);
}

MetricsLog::MetricsLog(fs::path file, int64_t last_step, const std::function<void(const std::string&)>& note,
                       double look_seconds, LastEvaluation evaluation)
    : file_(std::move(file)), look_(look_seconds) {
  if (is_there(file_)) {
    const KeptLines lines = kept_lines(file_, last_step, evaluation);
    if (lines.dropped > 0) replace_file(file_, lines.kept);
    if (lines.strange > 0 && note)
      note(cat("warning: ", file_.string(), ": left out ", lines.strange,
               lines.strange == 1 ? " line" : " lines", " that are no records of a step, the first one line ",
               lines.first_strange));
  }
  if (const std::string problem = open(); !problem.empty())
    throw DataError(cat(file_.string(), ": cannot open to write: ", problem));
}

std::string MetricsLog::open() {
  std::error_code made;  // the open below reports a failure
  fs::create_directories(file_.parent_path(), made);
  log_ = FileDescriptor(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  return log_.is_open() ? "" : std::strerror(errno);
}

std::string MetricsLog::write(const Json& record) {
  std::string removed;
  if (look_.due() && is_unlinked(log_.get())) {
    removed = "it was removed; it is begun anew with this step";
    if (std::string problem = open(); !problem.empty()) return problem;
  }
  const std::string problem = append_whole(log_.get(), record.dump() + "\n");
  return problem.empty() ? removed : problem;
}

ProgressLine::ProgressLine(std::ostream& out, std::function<int()> columns, int64_t logging_steps,
                           int64_t total_steps, int stages, std::function<double()> clock)
    : out_(out),
      columns_(std::move(columns)),
      logging_steps_(logging_steps),
      total_steps_(total_steps),
      stages_(stages),
      clock_(std::move(clock)) {}

std::string ProgressLine::line(const StepRecord& record, size_t columns) const {
  const auto number = [](const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), format, value);
    return std::string(text);
  };
  struct Field {
    std::string text;
    int rank;  // on a narrow terminal the fields of the highest rank are dropped first
  };
  std::vector<Field> fields{{cat("step ", record.step, "/", total_steps_), 0}};
  if (stages_ > 1) fields.push_back({cat("stage ", record.stage + 1, "/", stages_), 7});
  if (record.skipped)
    fields.push_back({std::isfinite(record.loss) && record.loss_scale > 0
                          ? cat("SKIPPED: fp16 overflow at loss scale ", record.loss_scale)
                          : std::string("SKIPPED: not finite"),
                      1});
  fields.push_back({cat("length ", format_count(record.sequence_tokens)), 8});
  fields.push_back({number("loss %.4f", record.loss), 2});
  fields.push_back({number("grad norm %.3g", record.gradient_norm), 5});
  fields.push_back({number("lr %.3g", record.learning_rate), 6});
  fields.push_back({cat(format_count(static_cast<int64_t>(record.tokens_per_second)), " tok/s"), 4});
  fields.push_back({number("MFU %.1f %%", 100 * record.mfu), 9});
  fields.push_back({cat("mem ", format_bytes(record.memory_bytes)), 10});
  fields.push_back({cat("left ", format_duration(record.eta_seconds)), 3});
  for (;;) {
    std::string text;
    for (const Field& field : fields) text += cat(text.empty() ? "" : "  ", field.text);
    if (text.size() <= columns) return text;
    if (fields.size() == 1) return text.substr(0, columns);
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
}

void ProgressLine::show(const StepRecord& record) {
  constexpr double kSilenceSeconds = 60;
  const auto columns = static_cast<size_t>(columns_ ? columns_() : 0);
  if (columns == 0) {
    finish();
    const double now = clock_();
    const bool overdue = !shown_seconds_ || now - *shown_seconds_ >= kSilenceSeconds;
    if (!overdue && record.step % logging_steps_ != 0 && record.step != total_steps_) return;
    out_ << line(record, std::string::npos) << std::endl;
    shown_seconds_ = now;
    return;
  }
  std::string text = line(record, columns - 1);  // a character in the last column may begin a new line
  const size_t width = text.size();
  if (width < drawn_) text.append(std::min(drawn_, columns - 1) - width, ' ');
  out_ << text << '\r' << std::flush;  // a launcher passes on lines that end in \r, too
  drawn_ = width;
}

void ProgressLine::note(const std::string& text) {
  finish();
  out_ << text << std::endl;
}

void ProgressLine::finish() {
  if (drawn_ > 0) out_ << std::endl;
  drawn_ = 0;
}

}  // namespace trireme
