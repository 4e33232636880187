#include "trireme/comm/failure.h"

#include <iomanip>

namespace trireme {

void throw_comm_error(const FailureContext& context, double waited_seconds, const std::string& reason) {
  // Backends begin their messages with "[source file:line] ".
  std::string text = reason;
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find("] ");
    if (end != std::string::npos) text = text.substr(end + 2);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  std::ostringstream message;
  message << std::fixed << std::setprecision(1) << context.action << " failed on rank " << context.world_rank
          << " after " << waited_seconds << " s (timeout "
          << std::chrono::duration<double>(context.timeout).count() << " s): " << text
          << ". Ranks taking part:";
  for (size_t i = 0; i < context.world_ranks.size(); ++i)
    message << (i == 0 ? " " : ", ") << context.world_ranks[i];
  message << ". Look at the output of the ranks that ended first";
  throw CommError(message.str());
}

}  // namespace trireme
