// Why a run was out of memory, as far as its message tells, and whether the message agrees with the forecast
// of the configuration that the user told.
#pragma once

#include <string>
#include <vector>

#include "trireme/forecast/forecast_inputs.h"
#include "trireme/plan/memory_error.h"

namespace trireme {

enum class MemoryErrorCauseKind : uint8_t {
  too_much,            // the forecast does not fit either: see the sets of changes
  fragmentation,       // the allocator keeps memory that the request could not use
  other_processes,     // hold the device's memory
  allowed_share,       // set_per_process_memory_fraction
  one_large_tensor,    // larger than what the device has
  known_tensor,        // the bytes asked for are those of a tensor that Trireme never makes
  another_device,      // has another size than the profile's
  more_than_forecast,  // the run held more than this configuration takes
  unexplained,         // by the forecast and the message it should have fitted
  beside_the_tensors,  // NCCL, cuBLAS or a context found no memory: PyTorch's allocator keeps it
  host,                // the host's memory, not the device's
  pinned_host,         // what may be pinned of it
};
constexpr auto enum_names(MemoryErrorCauseKind) {
  using enum MemoryErrorCauseKind;
  return std::to_array<EnumName<MemoryErrorCauseKind>>({{too_much, "too_much"},
                                                        {fragmentation, "fragmentation"},
                                                        {other_processes, "other_processes"},
                                                        {allowed_share, "allowed_share"},
                                                        {one_large_tensor, "one_large_tensor"},
                                                        {known_tensor, "known_tensor"},
                                                        {another_device, "another_device"},
                                                        {more_than_forecast, "more_than_forecast"},
                                                        {unexplained, "unexplained"},
                                                        {beside_the_tensors, "beside_the_tensors"},
                                                        {host, "host"},
                                                        {pinned_host, "pinned_host"}});
}

struct MemoryErrorCause {
  MemoryErrorCauseKind kind{};
  std::string what;  // a sentence with the figures
  std::string mend;  // what to do; empty where the sets of changes say it
};

// By the message alone.
std::vector<MemoryErrorCause> memory_error_causes(const MemoryError& error);

// What the user told of the run that failed.
struct ToldRun {
  ForecastInputs inputs;              // with a batch
  int64_t device_limit_bytes = 0;     // that tensors may take
  int64_t device_capacity_bytes = 0;  // HardwareProfile::memory_bytes
};
// Beside those, what follows from the forecast of what was told. Never empty.
std::vector<MemoryErrorCause> memory_error_causes(const MemoryError& error, const ToldRun& told);

}  // namespace trireme
