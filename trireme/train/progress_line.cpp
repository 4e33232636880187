#include "trireme/train/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {

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
    fields.erase(std::ranges::max_element(fields, {}, &Field::rank));
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
