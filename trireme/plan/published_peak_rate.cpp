#include "trireme/plan/published_peak_rate.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

struct Published {
  std::string_view name;  // whole words of the driver's name
  double tflops_16_bit, tflops_fp32;
};

// NVIDIA's data sheets, without sparsity. A longer name comes before a name that it contains.
constexpr Published kPublished[] = {
    {"B200", 2250, 75},     {"GB200", 2500, 80},   {"GH200", 989, 67},     {"H200 NVL", 835, 60},
    {"H200", 989, 67},      {"H100 NVL", 835, 60}, {"H100 PCIe", 756, 51}, {"H100", 989, 67},
    {"H800 PCIe", 756, 51}, {"H800", 989, 67},     {"A100", 312, 19.5},    {"A800", 312, 19.5},
    {"L40S", 362, 91.6},    {"A40", 149.7, 37.4},  {"A30", 165, 10.3},     {"A10", 125, 31.2},
    {"A10G", 70, 35},
};

bool has_words(std::string_view text, std::string_view words) {
  const size_t begin = text.find(words), end = begin + words.size();
  if (begin == std::string_view::npos) return false;
  const auto separates = [&](size_t i) { return i >= text.size() || text[i] == ' ' || text[i] == '-'; };
  return (begin == 0 || separates(begin - 1)) && separates(end);
}

}  // namespace

std::optional<PeakRate> published_peak_rate(std::string_view gpu_name, Precision precision) {
  for (const Published& gpu : kPublished)
    if (has_words(gpu_name, gpu.name))
      return PeakRate{(precision == Precision::fp32 ? gpu.tflops_fp32 : gpu.tflops_16_bit) * 1e12,
                      cat("published for ", gpu_name)};
  return std::nullopt;
}

}  // namespace trireme
