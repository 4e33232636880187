// Turns what a communication backend throws into a CommError that names what was being done, this rank, the
// ranks taking part, the seconds waited and the timeout.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace trireme {

struct FailureContext {
  std::string action;  // "all_to_all of group 'ulysses'"
  int world_rank = 0;  // this rank
  std::vector<int> world_ranks;
  std::chrono::milliseconds timeout{0};
};

[[noreturn]] void throw_comm_error(const FailureContext& context, double waited_seconds,
                                   const std::string& reason);

// Runs `body`; any exception but Trireme's own becomes a CommError. A device that has no memory for the buffers of a
// collective is no failure of a peer: that is a ConfigError, after which no one starts the run again.
template <typename Body>
auto rethrow_as_comm_error(const FailureContext& context, Body&& body);

}  // namespace trireme

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {

template <typename Body>
auto rethrow_as_comm_error(const FailureContext& context, Body&& body) {
  const double start = now_seconds();
  const auto waited = [&] { return now_seconds() - start; };
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw out_of_memory_error(error);
  } catch (const c10::Error& error) {
    throw_comm_error(context, waited(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw_comm_error(context, waited(), error.what());
  }
}

}  // namespace trireme
