#include "trireme/comm/failure.h"

#include <algorithm>

#include "trireme/base/joined.h"
#include "trireme/base/sizes.h"

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
  const double timeout_seconds = std::chrono::duration<double>(context.timeout).count();
  const std::string progress =
      context.activity == nullptr ? std::string() : describe_progress(context.activity->state());
  throw CommError(
      cat(context.action, " failed on rank ", context.world_rank, " after ", format_fixed(waited_seconds, 1),
          " s (timeout ", format_fixed(timeout_seconds, 1), " s)", progress.empty() ? "" : " in ", progress,
          ": ", in_one_line(reason),
          context.world_ranks.empty() ? "" : ". Ranks taking part: ", joined(context.world_ranks), ". ",
          context.advice.empty() ? "Look at the output of the ranks that ended first" : context.advice));
}

}  // namespace trireme
