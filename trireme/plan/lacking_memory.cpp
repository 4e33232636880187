#include "trireme/plan/lacking_memory.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

// The fewest GiB of a machine of which a plan may fill so many bytes.
int64_t host_memory_gib(PlanRequest request, int ranks, int64_t host_bytes) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  int64_t gib = host_bytes / kGiB;
  do {
    request.hardware.host_memory_bytes = ++gib * kGiB;
  } while (memory_limits(request, ranks).host_bytes < host_bytes);
  return gib;
}

}  // namespace

std::string host_share_text(const PlanRequest& request, int ranks, int64_t host_bytes) {
  const int64_t limit = memory_limits(request, ranks).host_bytes;
  std::string text =
      cat(format_bytes(host_bytes), " of the ", format_bytes(limit), " of each host that a plan may fill");
  if (host_bytes > limit)
    text += cat("; --host_memory_limit ", host_memory_gib(request, ranks, host_bytes),
                "g would do, where the machines have so much");
  return text;
}

std::vector<std::string> advice_on_lacking_memory(const PlanRequest& request, const Planned& best) {
  std::vector<std::string> advice;
  if (best.memory.fits()) return advice;
  if (best.memory.host_over_bytes() > 0)
    advice.push_back(cat("what is offloaded takes ",
                         host_share_text(request, best.configuration.ranks(), best.memory.host_bytes)));
  advice.emplace_back(
      "--explain_oom with the same model, GPUs and length also tries what a plan leaves as it is, such as "
      "moments in bf16");
  return advice;
}

}  // namespace trireme
