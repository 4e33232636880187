#include <ATen/Parallel.h>

#include "trireme/shard/adamw_device.h"
#include "trireme/shard/adamw_host_kernel.h"

namespace trireme {
namespace {

template <typename Moment>
AdamwSpan<Moment> within(const AdamwSpan<Moment>& span, int64_t begin, int64_t end) {
  const auto at = [begin](auto* data) { return data ? data + begin : nullptr; };
  return {at(span.master),   at(span.low),
          at(span.values),   span.gradient + begin,
          span.mean + begin, span.square + begin,
          end - begin,       span.mean_key,
          span.square_key,   span.first_element + static_cast<uint64_t>(begin)};
}

template <typename Moment>
void step_on_all_threads(const AdamwSpan<Moment>& span, const AdamwStep& step) {
  using Kernel = void (*)(const AdamwSpan<Moment>&, const AdamwStep&);
  static const auto kernel =
      fastest<Kernel>(&simd_base::step_adamw, &simd_v3::step_adamw, &simd_v4::step_adamw);
  constexpr int64_t kGrain = int64_t{1} << 14;
  at::parallel_for(0, span.count, kGrain,
                   [&](int64_t begin, int64_t end) { kernel(within(span, begin, end), step); });
}

}  // namespace

void step_adamw_on_host(const AdamwSpan<float>& span, const AdamwStep& step) {
  step_on_all_threads(span, step);
}
void step_adamw_on_host(const AdamwSpan<Bf16>& span, const AdamwStep& step) {
  step_on_all_threads(span, step);
}

}  // namespace trireme
