#include "trireme/measure/peak_rate.h"

#include <algorithm>

#include "trireme/device/gpu_identity.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/measure/matmul_rate.h"

namespace trireme {

PeakRate peak_rate(at::Device device, Precision precision, double seconds) {
  if (const auto published = published_peak_rate(gpu_identity(device).name, precision)) return *published;
  double peak = peak_matmul_rate(device, at::kFloat, seconds);
  // A processor without bf16 instructions multiplies bf16 values faster in fp32.
  const bool in_16_bits =
      device.is_cpu() ? precision == Precision::bf16 && processor_bf16_units() : precision != Precision::fp32;
  if (in_16_bits) peak = std::max(peak, peak_matmul_rate(device, at::kBFloat16, seconds));
  return {peak, "measured"};
}

}  // namespace trireme
