// The peak rate for MFU (model FLOPs utilisation, arXiv 2204.02311): the published rate of a known GPU, as
// other programs use it, else this device's measured rate.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/ATen.h>

#include "trireme/engine/engine_options.h"

namespace trireme {

struct PeakRate {
  double flops_per_second = 0;
  std::string source;  // "published for NVIDIA H200", "measured", "given"
};

// The rate of dense products of 16-bit values, or of fp32 values without TF32, by the driver's name of the
// GPU; nullopt for an unknown name.
std::optional<PeakRate> published_peak_rate(std::string_view gpu_name, Precision precision);

// Of one device; not collective. Measuring takes `seconds` for each of a few shapes.
PeakRate peak_rate(at::Device device, Precision precision, double seconds);

}  // namespace trireme
