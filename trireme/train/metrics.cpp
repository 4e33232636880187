#include "trireme/train/metrics.h"

#include <cstdio>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/train/durable_file.h"

namespace trireme {

Json StepRecord::to_json() const {
  Json memory = Json::object();
  for (const MemoryCategory category : kAllMemoryCategories)
    memory[name_of(category)] = peak_memory[category];
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
                 {"memory", memory},
                 {"seconds", seconds},
                 {"tokens_seen", tokens_seen},
                 {"eta_seconds", eta_seconds}};
  if (loss_scale > 0) {
    record["loss_scale"] = loss_scale;
    record["skipped"] = skipped;
  }
  return record;
}

MetricsLog::MetricsLog(const std::filesystem::path& file, int64_t last_step) {
  std::string kept;
  std::ifstream in(file);
  for (std::string line; last_step >= 0 && std::getline(in, line);) {
    // The last line of a killed run may be cut off.
    const Json record = Json::parse(line, nullptr, false);
    if (record.is_object() && record.value("step", last_step + 1) <= last_step) kept += line + "\n";
  }
  in.close();
  write_durable(file, kept);
  out_.open(file, std::ios::app);
  if (!out_) throw DataError(cat(file.string(), ": cannot open to write"));
}

bool MetricsLog::write(const Json& record) {
  out_ << record.dump() << '\n' << std::flush;
  const bool written = out_.good();
  out_.clear();
  return written;
}

ProgressLine::ProgressLine(std::ostream& out, bool terminal, int64_t logging_steps, int64_t total_steps,
                           int stages)
    : out_(out),
      terminal_(terminal),
      logging_steps_(logging_steps),
      total_steps_(total_steps),
      stages_(stages) {}

void ProgressLine::show(const StepRecord& record) {
  const bool last = record.step == total_steps_;
  if (!terminal_ && record.step % logging_steps_ != 0 && !last) return;
  char numbers[256];
  std::snprintf(numbers, sizeof(numbers),
                "loss %.4f  grad norm %.3g  lr %.3g  %s tok/s  MFU %.1f %%  mem %s  left %s", record.loss,
                record.gradient_norm, record.learning_rate,
                format_count(static_cast<int64_t>(record.tokens_per_second)).c_str(), 100 * record.mfu,
                format_bytes(record.memory_bytes).c_str(), format_duration(record.eta_seconds).c_str());
  std::string text = cat("step ", record.step, "/", total_steps_, "  ");
  if (stages_ > 1) text += cat("stage ", record.stage + 1, "/", stages_, "  ");
  if (record.skipped) text += cat("SKIPPED: fp16 overflow at loss scale ", record.loss_scale, "  ");
  text += cat("length ", format_count(record.sequence_tokens), "  ", numbers);
  if (!terminal_) {
    out_ << text << std::endl;
    return;
  }
  const size_t width = text.size();
  if (width < drawn_) text.append(drawn_ - width, ' ');
  out_ << text << '\r' << std::flush;  // a launcher passes on what \r ends, too
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
