// Turns the exceptions of a communication backend into a CommError that names the action, this rank, the
// ranks taking part, the seconds waited and the timeout.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/rank_activity.h"
#include "trireme/device/machine_error.h"

namespace trireme {

struct FailureContext {
  std::string action;  // "all_to_all of group 'ulysses'"
  int world_rank = 0;  // this rank
  std::vector<int> world_ranks = {};
  std::chrono::milliseconds timeout{0};
  const RankActivity* activity = nullptr;  // tells step and layer; may be null
  std::string advice = {};                 // one sentence; empty: look at the ranks that ended first
};

[[noreturn]] void throw_comm_error(const FailureContext& context, double waited_seconds,
                                   const std::string& reason);

// Runs `body`. Any exception other than Trireme's becomes a CommError. Two are no peer's failure: missing
// memory for a collective's buffers becomes a ConfigError, and nobody restarts the run; a fault of this rank's
// device becomes a SystemFault.
template <typename Body>
auto rethrow_as_comm_error(const FailureContext& context, Body&& body) {
  const double start = now_seconds();
  const auto waited = [&] { return now_seconds() - start; };
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    take_machine_error(error, [](const auto& known) { throw known; });
    if (const auto* theirs = dynamic_cast<const c10::Error*>(&error))
      throw_comm_error(context, waited(), theirs->what_without_backtrace());
    throw_comm_error(context, waited(), error.what());
  }
}

}  // namespace trireme
