// The peak rates that makers publish of their GPUs. A built-in profile (hardware_catalog.h) and MFU
// (measure/peak_rate.h) read them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/forecast/precision.h"

namespace trireme {

struct PeakRate {
  double flops_per_second = 0;
  std::string source;  // "published for NVIDIA H200", "measured", "given"
};

// The rate of dense products of 16-bit values, or of fp32 values without TF32, by the driver's name of the
// GPU or a profile's description; nullopt for an unknown name.
std::optional<PeakRate> published_peak_rate(std::string_view gpu_name, Precision precision);

}  // namespace trireme
