#include "trireme/plan/memory_answer_text.h"

#include <cmath>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

std::string of_limit(int64_t bytes, int64_t limit) {
  return limit > 0 ? cat(format_bytes(bytes), " of ", format_bytes(limit)) : format_bytes(bytes);
}

void write_error(std::ostream& out, const MemoryError& error) {
  out << "The message: " << quotation(error.message) << "\n";
  const auto figure = [&](const char* name, const std::optional<int64_t>& bytes) {
    if (bytes) out << "  " << name << " " << format_bytes(*bytes) << "\n";
  };
  if (error.rank) out << "  rank " << *error.rank << "\n";
  if (error.gpu) out << "  GPU " << *error.gpu << "\n";
  figure("asked for", error.asked);
  figure("in tensors", error.allocated);
  figure("kept unused by PyTorch", error.unallocated);
  figure("free on the device", error.free);
  figure("of the device in all", error.capacity);
  if (error.asked_by) {
    const TracebackFrame& frame = *error.asked_by;
    out << "  asked by " << quotation(frame.file);
    if (frame.line > 0) out << ":" << frame.line;
    if (!frame.function.empty()) out << " in " << quotation(frame.function);
    if (!frame.code.empty()) out << ": " << quotation(frame.code);
    out << "\n";
  }
}

void write_categories(std::ostream& out, const std::vector<CategoryBytes>& categories) {
  for (const CategoryBytes& each : categories)
    out << "  " << name_of(each.category) << std::string(15 - std::string(name_of(each.category)).size(), ' ')
        << format_bytes(each.bytes) << "\n";
}

void write_shortage(std::ostream& out, const MemoryShortage& shortage, const MemoryChanges& changes) {
  const TensorLimits& limits = changes.limits;
  out << "By the forecast a rank holds " << of_limit(changes.cost.device_bytes, limits.device_bytes)
      << " when it is fullest (" << shortage.fullest_moment << "):\n";
  write_categories(out, shortage.device);
  if (shortage.host.empty()) return;
  out << "Host memory of a machine's " << limits.machine_ranks
      << (limits.machine_ranks == 1 ? " rank: " : " ranks: ")
      << of_limit(changes.cost.host_bytes, limits.host_bytes) << "\n";
  write_categories(out, shortage.host);
}

// "+12.3 %"
std::string added_percent(double before, double then) {
  const double percent = 100 * (then - before) / before;
  return cat(percent < -0.05 ? "-" : "+", format_fixed(std::fabs(percent), 1), " %");
}

std::string step_seconds_text(double seconds) {
  return cat(format_fixed(seconds, seconds < 10 ? 2 : 1), " s");
}

void write_set(std::ostream& out, const MemoryChanges& changes, const MemoryChangeSet& set) {
  const StepCost &before = changes.cost, &then = set.cost;
  const TensorLimits& limits = changes.limits;
  out << set.flags(changes.step) << "\n     " << of_limit(then.device_bytes, limits.device_bytes)
      << " a rank (";
  if (const int64_t saved = before.device_bytes - then.device_bytes; saved >= 0)
    out << "saves " << format_bytes(saved) << ")";
  else
    out << format_bytes(-saved) << " more)";
  if (then.host_bytes > 0 || before.host_bytes > 0)
    out << ", host " << of_limit(then.host_bytes, limits.host_bytes);
  out << ", a step " << step_seconds_text(then.seconds) << " (" << added_percent(before.seconds, then.seconds)
      << "), " << format_count(std::llround(then.tokens_per_second)) << " tokens/s\n";
  for (const MemoryChange& change : set.changes)
    if (!change.note.empty()) out << "     " << change.note << "\n";
  if (const Json patch = set.deepspeed(changes.step); !patch.empty())
    out << "     DeepSpeed: " << patch.dump() << "\n";
  if (const std::string trainer = set.trainer(changes.step); !trainer.empty())
    out << "     Trainer: " << trainer << "\n";
  if (const std::string alone = set.trireme_alone(); !alone.empty())
    out << "     neither of those has: " << alone << "\n";
}

void write_changes(std::ostream& out, const MemoryChanges& changes) {
  if (changes.fits()) {
    out << "It fits as it is: no change is needed.\n";
    return;
  }
  if (!changes.sets.empty()) {
    out << "Sets of changes after which it fits, the smallest first; attention stays full and a step keeps "
           "its tokens.\n"
        << "Bytes and times are Trireme's. Without changes a step would take "
        << step_seconds_text(changes.cost.seconds) << ", had it the memory.\n";
    for (size_t i = 0; i < changes.sets.size(); ++i) {
      out << "  " << i + 1 << ". ";
      write_set(out, changes, changes.sets[i]);
    }
    return;
  }
  out << "No set of changes makes it fit. The nearest:\n  ";
  write_set(out, changes, *changes.nearest);
  out << "     lacks " << format_bytes(changes.nearest->cost.bytes_too_many(changes.limits)) << "\n"
      << "What would do with it:\n";
  if (changes.ranks_needed > 0)
    out << "  " << changes.ranks_needed << " ranks that share the sequence, in place of "
        << changes.nearest->step.inputs.ranks << "\n";
  if (const int64_t device = changes.nearest->cost.device_bytes; device > changes.limits.device_bytes)
    out << "  " << format_bytes(device) << " for a rank's tensors\n";
  if (const int64_t host = changes.nearest->cost.host_bytes;
      changes.limits.host_bytes > 0 && host > changes.limits.host_bytes)
    out << "  " << format_bytes(host) << " of a host's memory\n";
  if (changes.longest_tokens > 0)
    out << "  a smaller task: --max_seq_length " << changes.longest_tokens << "\n";
}

}  // namespace

std::string memory_answer_text(const MemoryAnswer& answer) {
  std::ostringstream out;
  if (answer.error) write_error(out, *answer.error);
  for (const MemoryErrorCause& cause : answer.causes) {
    out << "Cause: " << cause.what << "\n";
    if (!cause.mend.empty()) out << "  " << cause.mend << "\n";
  }
  write_shortage(out, answer.shortage, answer.changes);
  write_changes(out, answer.changes);
  return out.str();
}

}  // namespace trireme
