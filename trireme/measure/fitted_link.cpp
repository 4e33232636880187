#include "trireme/measure/fitted_link.h"

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/call_time.h"
#include "trireme/comm/collectives.h"

namespace trireme {
namespace {

// A few milliseconds of a CPU's work.
class RankWork {
 public:
  explicit RankWork(at::Device device)
      : factor_(at::ones({kSide, kSide}, at::TensorOptions(device).dtype(at::kFloat))),
        product_(at::empty_like(factor_)) {}
  void run() {
    for (int i = 0; i < kProducts; ++i) at::mm_out(product_, factor_, factor_);
    wait_for_stream(factor_.device());
  }

 private:
  static constexpr int64_t kSide = 256;
  static constexpr int kProducts = 20;
  at::Tensor factor_, product_;
};

// Sends a whole number of bytes to each other rank, and none to itself. Each exchange comes after work, as in
// a step: the core of a rank that waits falls asleep, and ranks are not ready at the same moment.
TimedExchange time_all_to_all(Group& group, at::Device device, int64_t sent_bytes, int64_t repeats) {
  RankWork work(device);
  const int64_t each = std::max<int64_t>(1, sent_bytes / (group.size() - 1));
  std::vector<int64_t> rows(static_cast<size_t>(group.size()), each);
  rows.at(static_cast<size_t>(group.rank())) = 0;
  const at::Tensor block = at::zeros({each * (group.size() - 1)}, at::TensorOptions(device).dtype(at::kByte));
  double seconds = 0;
  for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first one warms up
    work.run();
    const double begin = now_seconds();
    const at::Tensor received = all_to_all(group, block, rows, rows);
    wait_for_stream(device);
    if (repeat >= 0) seconds += now_seconds() - begin;
  }
  const double of_all = Agreement(group, device).sum(seconds);
  return {block.size(0), of_all / static_cast<double>(repeats * group.size())};
}

}  // namespace

LinkSpeed fit_link_speed(const std::vector<TimedExchange>& timed) {
  // Least squares of (a + b x - t) / t: weights 1 / t^2.
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  int64_t least = 0, most = 0;
  for (const TimedExchange& one : timed) {
    TRIREME_ASSERT(one.sent_bytes > 0 && one.seconds > 0, one.sent_bytes, " bytes took ", one.seconds, " s");
    least = least == 0 ? one.sent_bytes : std::min(least, one.sent_bytes);
    most = std::max(most, one.sent_bytes);
    const double x = static_cast<double>(one.sent_bytes), weight = 1 / (one.seconds * one.seconds);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wt += weight * one.seconds;
    wxt += weight * x * one.seconds;
  }
  TRIREME_ASSERT(least < most, "a line through ", timed.size(), " exchanges of one size");
  const double seconds_per_byte = (w * wxt - wx * wt) / (w * wxx - wx * wx);
  const double latency = (wt - seconds_per_byte * wx) / w;
  if (latency > 0 && seconds_per_byte > 0) return {latency, 1 / seconds_per_byte};
  // Only noise gives such a line. A line through the origin replaces it.
  return {0, wxx / wxt};
}

FittedLink measure_link(Group& group, at::Device device, int64_t repeats) {
  if (group.size() == 1) return {};
  std::vector<TimedExchange> timed;
  for (int64_t sent_bytes = int64_t{4} << 10; sent_bytes <= int64_t{16} << 20; sent_bytes *= 4)
    timed.push_back(time_all_to_all(group, device, sent_bytes, repeats));
  const LinkSpeed speed = fit_link_speed(timed);
  return {speed, std::move(timed)};
}

}  // namespace trireme
