#include "trireme/comm/failure.h"

#include <algorithm>
#include <iomanip>

namespace trireme {
namespace {

// A library's message in one line, without the leading "[source file:line] " and the trailing stack trace.
std::string in_one_line(std::string text) {
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find("] ");
    if (end != std::string::npos) text = text.substr(end + 2);
  }
  for (const char* trace : {"\nException raised from", "Exception raised from", "\nframe #0"})
    text = text.substr(0, text.find(trace));
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

void throw_comm_error(const FailureContext& context, double waited_seconds, const std::string& reason) {
  std::ostringstream message;
  message << std::fixed << std::setprecision(1) << context.action << " failed on rank " << context.world_rank
          << " after " << waited_seconds << " s (timeout "
          << std::chrono::duration<double>(context.timeout).count() << " s)";
  const std::string progress =
      context.activity == nullptr ? std::string() : describe_progress(context.activity->state());
  if (!progress.empty()) message << " in " << progress;
  message << ": " << in_one_line(reason);
  if (!context.world_ranks.empty()) message << ". Ranks taking part:";
  for (size_t i = 0; i < context.world_ranks.size(); ++i)
    message << (i == 0 ? " " : ", ") << context.world_ranks[i];
  message << ". "
          << (context.advice.empty() ? "Look at the output of the ranks that ended first" : context.advice);
  throw CommError(message.str());
}

}  // namespace trireme
