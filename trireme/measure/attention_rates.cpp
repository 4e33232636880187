#include "trireme/measure/attention_rates.h"

#include <algorithm>
#include <cmath>

#include "trireme/kernels/local_attention.h"
#include "trireme/measure/rate_rounds.h"

namespace trireme {
namespace {

// Those that are timed, of a layer that may have more: its rows lie that far apart.
struct TimedHeads {
  int64_t query, kv, layer_query, layer_kv;
};

// Two heads do not fill a GPU: an H200 then reaches 244 TFLOP/s at 8,192 tokens, with 32 heads 613.
TimedHeads timed_heads(at::Device device) {
  return device.is_cuda() ? TimedHeads{32, 8, 32, 8} : TimedHeads{2, 1, 8, 4};
}

struct TimedAttention {
  at::Tensor q, k, v, d_o;
  AttentionSpec spec;
  AttentionOutput output;

  TimedAttention(int64_t tokens, int64_t width, const TimedHeads& heads, const at::TensorOptions& options) {
    const auto draw = [&](int64_t of_heads) { return at::randn({1, tokens, of_heads, width}, options); };
    // q, k and v lie side by side, as an exchange gives them.
    const at::Tensor qkv = draw(heads.layer_query + 2 * heads.layer_kv);
    q = qkv.narrow(2, 0, heads.query);
    k = qkv.narrow(2, heads.layer_query, heads.kv);
    v = qkv.narrow(2, heads.layer_query + heads.layer_kv, heads.kv);
    d_o = draw(heads.layer_query).narrow(2, 0, heads.query);
    spec.scores.scale = 1 / std::sqrt(static_cast<double>(width));
    spec.keys = causal_keys(tokens);
    for (int64_t head = 0; head < heads.query; ++head)
      spec.kv_of_query.push_back(static_cast<int>(head * heads.kv / heads.query));
  }
};

// Pairs of query and key times head values.
double timed_values(int64_t tokens, int64_t width, const TimedHeads& heads) {
  return static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2 *
         static_cast<double>(heads.query * width);
}

}  // namespace

void measure_attention_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates) {
  const auto kernel = make_local_attention(AttentionKernel::automatic, timer.device(), dtype);
  const auto options = at::TensorOptions(timer.device()).dtype(dtype);
  const TimedHeads heads = timed_heads(timer.device());
  double best = 0;
  for (const int64_t tokens : {256, 512, 1024, 2048, 4096, 8192, 16384})
    for (const int64_t width : {16, 32, 64, 128, 256}) {
      const double values = timed_values(tokens, width, heads);
      if (!rates[WorkKind::attention_forward].points.empty() &&
          14 * values / best > kLongestPoint * timer.seconds_of_each())
        continue;
      TimedAttention timed(tokens, width, heads, options);
      const std::vector<double> seconds = timer.seconds_in_turns(
          {[&] { timed.output = kernel->forward(timed.q, timed.k, timed.v, timed.spec); },
           [&] { kernel->backward(timed.d_o, timed.q, timed.k, timed.v, timed.output, timed.spec); }});
      const auto size = static_cast<double>(tokens), head_width = static_cast<double>(width);
      rates[WorkKind::attention_forward].points.push_back({size, head_width, 4 * values / seconds[0]});
      rates[WorkKind::attention_backward].points.push_back({size, head_width, 10 * values / seconds[1]});
      best = std::max(best, 4 * values / seconds[0]);
    }
}

}  // namespace trireme
