// The peak rate for MFU (model FLOPs utilisation, arXiv 2204.02311): the published rate of a known GPU, as
// other programs use it, else this device's measured rate.
#pragma once

#include <ATen/ATen.h>

#include "trireme/plan/published_peak_rate.h"

namespace trireme {

// Of one device; not collective. Measuring takes `seconds` for each of a few shapes.
PeakRate peak_rate(at::Device device, Precision precision, double seconds);

}  // namespace trireme
