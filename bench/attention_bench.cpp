// Times our attention beside libtorch's CPU flash kernel with repeated keys (what Hugging Face Transformers
// runs), in one interleaved run: forward and backward, median and spread, GFLOP/s and share of the matmul
// rate.
//
//   attention_bench [--tokens 2048,8192] [--threads 1,2] [--heads 8] [--kv_heads 4] [--width 64] [--window 0]
//                   [--seconds 3] [--dtypes fp32,bf16]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/base/split.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/measure/spread.h"

namespace trireme {
namespace {

// Calls each body in turn until the time is used up, at least three times each.
std::vector<Spread> interleave(const std::vector<std::function<void()>>& bodies, double seconds) {
  std::vector<std::vector<double>> times(bodies.size());
  for (const auto& body : bodies) body();
  const double end = now_seconds() + seconds;
  while (times.back().size() < 3 || now_seconds() < end)
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double begin = now_seconds();
      bodies[i]();
      times[i].push_back(now_seconds() - begin);
    }
  std::vector<Spread> result;
  result.reserve(times.size());
  for (auto& all : times) result.push_back(spread_of(std::move(all)));
  return result;
}

struct Options {
  std::map<std::string, std::string> values{{"tokens", "2048,8192"}, {"threads", "1,2"},     {"heads", "8"},
                                            {"kv_heads", "4"},       {"width", "64"},        {"window", "0"},
                                            {"seconds", "3"},        {"dtypes", "fp32,bf16"}};
  int64_t number(const std::string& name) const { return parse_count(values.at(name), "--" + name); }
  std::vector<int64_t> numbers(const std::string& name) const {
    std::vector<int64_t> result;
    for (const std::string& word : split(values.at(name), ','))
      result.push_back(parse_count(word, "--" + name));
    return result;
  }
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], name = flag.substr(std::min<size_t>(2, flag.size()));
    if (!flag.starts_with("--") || !options.values.contains(name))
      throw ConfigError(cat("unknown flag ", flag));
    if (i + 1 == argc) throw ConfigError(cat(flag, " has no value"));
    options.values[name] = argv[i + 1];
  }
  return options;
}

void measure(const Options& options, int64_t tokens, int threads, at::ScalarType dtype) {
  at::set_num_threads(threads);
  const int64_t heads = options.number("heads"), kv_heads = options.number("kv_heads");
  const int64_t width = options.number("width");
  const auto draw = [&](int64_t count) { return at::randn({1, tokens, count, width}).to(dtype); };
  const at::Tensor q = draw(heads), k = draw(kv_heads), v = draw(kv_heads), d_o = draw(heads);
  AttentionSpec spec;
  spec.scores.scale = 1 / std::sqrt(static_cast<double>(width));
  spec.keys = causal_keys(tokens, options.number("window"));
  for (int64_t head = 0; head < heads; ++head)
    spec.kv_of_query.push_back(static_cast<int>(head * kv_heads / heads));
  const auto ours = make_local_attention(AttentionKernel::flash, at::kCPU, dtype);
  const AttentionOutput out = ours->forward(q, k, v, spec);

  const auto repeated = [&](const at::Tensor& x) {
    return x.transpose(1, 2).repeat_interleave(heads / kv_heads, 1);
  };
  const at::Tensor q_BHSD = q.transpose(1, 2), do_BHSD = d_o.transpose(1, 2);
  const auto theirs = at::_scaled_dot_product_flash_attention_for_cpu(q_BHSD, repeated(k), repeated(v), 0.0,
                                                                      true, {}, spec.scores.scale);
  const at::Tensor k_repeated = repeated(k), v_repeated = repeated(v);

  const at::Tensor a = at::randn({1024, 1024}).to(dtype), b = at::randn({1024, 1024}).to(dtype);
  at::Tensor c = at::empty({1024, 1024}, a.options());
  const std::vector<std::function<void()>> bodies{
      [&] { ours->forward(q, k, v, spec); },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu(q_BHSD, repeated(k), repeated(v), 0.0, true, {},
                                                        spec.scores.scale);
      },
      [&] { ours->backward(d_o, q, k, v, out, spec); },
      [&] {
        const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            do_BHSD, q_BHSD, k_repeated, v_repeated, std::get<0>(theirs), std::get<1>(theirs), 0.0, true, {},
            spec.scores.scale);
        const auto folded = [&](const at::Tensor& x) {
          return x.reshape({1, kv_heads, heads / kv_heads, tokens, width}).sum(2);
        };
        folded(dk);
        folded(dv);
      },
      [&] { at::mm_out(c, a, b); },
  };
  const std::vector<Spread> t = interleave(bodies, static_cast<double>(options.number("seconds")));
  // libtorch's has no window.
  const auto all_pairs = static_cast<double>(causal_keys(tokens, 0)->pairs(0));
  const double of_a_pair = width * heads, kept = static_cast<double>(spec.keys->pairs(0)) / all_pairs;
  const double matmul = 2.0 * 1024 * 1024 * 1024 / t[4].median;
  std::printf("S %6ld  %s  %d threads  %s  matmul %.0f GFLOP/s\n", tokens,
              dtype == at::kFloat ? "fp32" : "bf16", threads, ours->name().c_str(), matmul / 1e9);
  const auto line = [&](const char* what, double all_flop, const Spread& ours, const Spread& other) {
    const double flop = kept * all_flop;
    std::printf(
        "  %-8s ours %9.2f ms [%.2f, %.2f] %5.0f GFLOP/s %3.0f %%   libtorch %9.2f ms [%.2f, %.2f] %5.0f "
        "GFLOP/s %3.0f %%   %.2fx\n",
        what, ours.median * 1e3, ours.least * 1e3, ours.most * 1e3, flop / ours.median / 1e9,
        100 * flop / ours.median / matmul, other.median * 1e3, other.least * 1e3, other.most * 1e3,
        all_flop / other.median / 1e9, 100 * all_flop / other.median / matmul, other.median / ours.median);
  };
  line("forward", 4 * all_pairs * of_a_pair, t[0], t[1]);
  line("backward", 10 * all_pairs * of_a_pair, t[2], t[3]);
  std::fflush(stdout);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    const auto options = trireme::read_options(argc, argv);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      if (options.values.at("dtypes").find(dtype == at::kFloat ? "fp32" : "bf16") == std::string::npos)
        continue;
      for (const int64_t threads : options.numbers("threads"))
        for (const int64_t tokens : options.numbers("tokens"))
          trireme::measure(options, tokens, static_cast<int>(threads), dtype);
    }
  } catch (const std::exception& error) {
    std::cerr << "attention_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
