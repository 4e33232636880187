// The rate that model FLOP/s are held against for MFU (model FLOPs utilisation, arXiv 2204.02311): what the maker of a
// known GPU promises, as other programs do, else what this device was measured to do.
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

// Dense products of 16-bit factors, or of fp32 ones without TF32, by the name that the driver gives the GPU. Nothing for a
// name that is not known.
std::optional<PeakRate> published_peak_rate(std::string_view gpu_name, Precision precision);

// Of one device; not collective. Measuring takes `seconds` for each of a few shapes.
PeakRate peak_rate(at::Device device, Precision precision, double seconds);

}  // namespace trireme
