// Laws of attention by calls, on the CPU: FlashAttention-2 is played by a kernel that computes densely, in
// fp64, what the real one's arguments say. What the real one leaves unwritten is NaN here.
#include "trireme/attention/cuda_calls.h"

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/attention/cuda_kernels.h"
#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"

#include "tests/attention/band_laws.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using trireme_test::draw_heads;
using trireme_test::draw_mask;
using trireme_test::DrawnMask;
using trireme_test::LawCase;

// Rows of q, o, do, dq and lse [q, q_end), of k, v, dk and dv [k, k_end).
struct Segment {
  int64_t q, q_end;
  int64_t k, k_end;
};

class EmulatedFlash final : public CallKernel {
 public:
  EmulatedFlash(bool dense_only, int* calls, std::map<const void*, at::Tensor>* cu_seqlens)
      : dense_only_(dense_only), calls_(calls), cu_seqlens_(cu_seqlens) {}
  std::string name() const override { return dense_only_ ? "dense" : "emulated"; }
  std::string refusal(const MaskCall& call, const AttentionSizes& /*sizes*/) const override {
    return dense_only_ && !call.dense() ? "got segments" : "";
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    ++*calls_;
    AttentionOutput out{unwritten(q), {}};
    if (mask.dense()) {
      out.lse = at::full({q.size(0), q.size(2), q.size(1)}, NAN, at::kFloat);
      for (int64_t b = 0; b < q.size(0); ++b)
        forward_segment({0, q.size(1), 0, k.size(1)}, mask, q[b], k[b], v[b], out.o[b], out.lse[b]);
      return out;
    }
    out.lse = at::full({q.size(1), q.size(0)}, NAN, at::kFloat);
    for (const Segment& s : segments(mask)) forward_segment(s, mask, q, k, v, out.o, out.lse);
    return out;
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    ++*calls_;
    EXPECT_TRUE(saved.lse.is_contiguous());
    AttentionGradients g{unwritten(q), unwritten(k), unwritten(v)};
    if (mask.dense()) {
      for (int64_t b = 0; b < q.size(0); ++b)
        backward_segment({0, q.size(1), 0, k.size(1)}, mask, d_o[b], q[b], k[b], v[b], saved.o[b],
                         saved.lse[b], {g.dq[b], g.dk[b], g.dv[b]});
      return g;
    }
    for (const Segment& s : segments(mask)) backward_segment(s, mask, d_o, q, k, v, saved.o, saved.lse, g);
    return g;
  }

 private:
  static at::Tensor unwritten(const at::Tensor& like) { return at::full(like.sizes(), NAN, like.options()); }

  std::vector<Segment> segments(const KernelMask& mask) const {
    cu_seqlens_->emplace(mask.cu_q.const_data_ptr(), mask.cu_q);
    std::vector<Segment> all;
    for (int64_t i = 0; i + 1 < mask.cu_q.size(0); ++i) {
      const auto at = [&](const at::Tensor& cu, int64_t index) -> int64_t {
        return cu[index].item<int32_t>();
      };
      all.push_back({at(mask.cu_q, i), at(mask.cu_q, i + 1), at(mask.cu_k, i), at(mask.cu_k, i + 1)});
      EXPECT_LE(all.back().q_end - all.back().q, mask.longest_q);
      EXPECT_LE(all.back().k_end - all.back().k, mask.longest_k);
    }
    return all;
  }

  static at::Tensor hidden(int64_t rows, int64_t keys, const Band& band) {
    const at::Tensor diagonal = at::arange(rows, at::kLong).unsqueeze(1) + (keys - rows);
    const at::Tensor key = at::arange(keys, at::kLong).unsqueeze(0);
    at::Tensor hidden = at::zeros({rows, keys}, at::kBool);
    if (band.left != kUnbounded) hidden = hidden.logical_or(key.lt(diagonal - band.left));
    if (band.right != kUnbounded) hidden = hidden.logical_or(key.gt(diagonal + band.right));
    return hidden;
  }

  // One query head with its key/value head, fp64.
  struct Head {
    at::Tensor q, k, v, scores;
    Head(const Segment& s, const KernelMask& mask, const at::Tensor& q_NhD, const at::Tensor& k_MkD,
         const at::Tensor& v_MkD, int64_t head) {
      const int64_t kv = head / (q_NhD.size(1) / k_MkD.size(1));
      q = q_NhD.slice(0, s.q, s.q_end).select(1, head).to(at::kDouble);
      k = k_MkD.slice(0, s.k, s.k_end).select(1, kv).to(at::kDouble);
      v = v_MkD.slice(0, s.k, s.k_end).select(1, kv).to(at::kDouble);
      scores =
          (at::mm(q, k.t()) * mask.scale).masked_fill(hidden(q.size(0), k.size(0), mask.band), -INFINITY);
    }
  };

  static void forward_segment(const Segment& s, const KernelMask& mask, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                              const at::Tensor& lse) {
    for (int64_t head = 0; head < q.size(1); ++head) {
      const at::Tensor own_o = o.slice(0, s.q, s.q_end).select(1, head);
      const at::Tensor own_lse = lse[head].slice(0, s.q, s.q_end);
      if (s.k == s.k_end) {
        own_o.zero_();
        own_lse.fill_(INFINITY);
        continue;
      }
      const Head of(s, mask, q, k, v, head);
      EXPECT_TRUE(of.scores.gt(-INFINITY).any(1).all().item<bool>()) << "a row of a band sees nothing";
      const at::Tensor sum = of.scores.logsumexp(1, true);
      own_o.copy_(at::mm((of.scores - sum).exp(), of.v));
      own_lse.copy_(sum.squeeze(1));
    }
  }

  static void backward_segment(const Segment& s, const KernelMask& mask, const at::Tensor& d_o,
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& o, const at::Tensor& lse, const AttentionGradients& g) {
    const at::Tensor own_dk = g.dk.slice(0, s.k, s.k_end).zero_(),
                     own_dv = g.dv.slice(0, s.k, s.k_end).zero_();
    const at::Tensor own_dq = g.dq.slice(0, s.q, s.q_end).zero_();
    if (s.k == s.k_end || s.q == s.q_end) return;
    for (int64_t head = 0; head < q.size(1); ++head) {
      const Head of(s, mask, q, k, v, head);
      const int64_t kv = head / (q.size(1) / k.size(1));
      const at::Tensor grad = d_o.slice(0, s.q, s.q_end).select(1, head).to(at::kDouble);
      const at::Tensor p = (of.scores - lse[head].slice(0, s.q, s.q_end).unsqueeze(1).to(at::kDouble)).exp();
      const at::Tensor delta = (grad * o.slice(0, s.q, s.q_end).select(1, head).to(at::kDouble)).sum(1, true);
      const at::Tensor ds = p * (at::mm(grad, of.v.t()) - delta) * mask.scale;
      own_dq.select(1, head).copy_(at::mm(ds, of.k));
      own_dk.select(1, kv).add_(at::mm(ds.t(), of.q).to(g.dk.scalar_type()));
      own_dv.select(1, kv).add_(at::mm(p.t(), grad).to(g.dv.scalar_type()));
    }
  }

  bool dense_only_;
  int* calls_;
  std::map<const void*, at::Tensor>* cu_seqlens_;
};

struct Emulated {
  int dense_calls = 0, calls = 0;
  std::map<const void*, at::Tensor>
      cu_seqlens;  // that a kernel was given, kept so that no address comes again
  // As 'auto' is: what is dense goes to a kernel that knows nothing else.
  std::unique_ptr<CallsAttention> both() { return attention(true, true); }
  std::unique_ptr<CallsAttention> dense() { return attention(true, false); }
  std::unique_ptr<CallsAttention> flash() { return attention(false, true); }

 private:
  std::unique_ptr<CallsAttention> attention(bool with_dense, bool with_flash) {
    std::vector<std::unique_ptr<CallKernel>> kernels;
    if (with_dense) kernels.push_back(std::make_unique<EmulatedFlash>(true, &dense_calls, &cu_seqlens));
    if (with_flash) kernels.push_back(std::make_unique<EmulatedFlash>(false, &calls, &cu_seqlens));
    return std::make_unique<CallsAttention>(std::move(kernels));
  }
};

TEST(CallsAttention, equals_the_definition_on_random_masks) {
  Emulated kernels;
  const auto flash = kernels.flash(), both = kernels.both();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const DrawnMask mask = draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    LawCase c = draw_heads(seed);
    if (seed % 3 == 0) c.results = ResultDtype::fp32;
    trireme_test::expect_definition(seed % 2 == 0 ? *flash : *both, mask, c, seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(kernels.dense_calls, 0);
  EXPECT_GT(kernels.calls, 0);
}

TEST(CallsAttention, parts_computed_from_the_merged_output_sum_up_to_the_whole) {
  Emulated kernels;
  const auto attention = kernels.flash();
  for (uint64_t seed = 1000; seed < 1100; ++seed) {
    const DrawnMask mask = draw_mask(seed, 40);
    SCOPED_TRACE(mask.text);
    trireme_test::expect_parts_to_sum_up(*attention, mask, draw_heads(seed), seed);
    if (HasFailure()) return;
  }
}

// Each row a call of its own, and all of them see the last keys.
TEST(CallsAttention, gradients_of_keys_that_calls_share_are_summed_in_fp32) {
  auto keys = std::make_shared<VisibleKeys>();
  keys->key_rows = 40;
  KeyRanges ranges;
  for (int64_t row = 0; row < 15; ++row) {
    ranges.begin.push_back(2 * row);
    ranges.end.push_back(40);
  }
  keys->samples = {ranges};
  ASSERT_EQ(mask_calls(*keys, 1).size(), 15);
  Emulated kernels;
  const auto attention = kernels.flash();
  const at::Tensor q = at::randn({1, 15, 1, 16}).to(at::kBFloat16),
                   k = at::randn({1, 40, 1, 16}).to(at::kBFloat16);
  AttentionSpec spec{0.25, keys, {0}, ResultDtype::of_input};
  const AttentionOutput saved = attention->forward(q, k, k, spec);
  const AttentionGradients rounded = attention->backward(q, q, k, k, saved, spec);
  spec.results = ResultDtype::fp32;
  const AttentionGradients sums = attention->backward(q, q, k, k, saved, spec);
  EXPECT_TRUE(at::equal(rounded.dk, sums.dk.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(rounded.dv, sums.dv.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(sums.dk, rounded.dk.to(at::kFloat)));
}

TEST(CallsAttention, whole_samples_and_packed_documents_are_one_call) {
  Emulated kernels;
  const auto attention = kernels.both();
  const auto run = [&](const std::vector<Documents>& documents, int64_t window) {
    const at::Tensor q = at::randn({2, 12, 2, 8}), k = at::randn({2, 12, 1, 8});
    const AttentionSpec spec{1,
                             visible_keys({.window = window}, documents, 12, {{0, 12}}, {{0, 12}}),
                             {0, 0},
                             ResultDtype::of_input};
    attention->forward(q, k, k, spec);
  };
  run({}, 0);
  run({}, 3);
  EXPECT_EQ(kernels.dense_calls, 2);
  run({Documents({0, 5, 12}), Documents({0, 1, 2, 12})}, 0);
  run({Documents({0, 5, 12}), Documents({0, 1, 2, 12})}, 3);
  EXPECT_EQ(kernels.dense_calls, 2);
  EXPECT_EQ(kernels.calls, 2);
}

TEST(CallsAttention, the_segments_of_a_mask_are_made_once_for_all_layers_of_a_step) {
  Emulated kernels;
  const auto attention = kernels.flash();
  const at::Tensor q = at::randn({1, 12, 2, 8}), k = at::randn({1, 12, 1, 8});
  for (const int64_t border : {5, 9, 5}) {
    const auto mask = visible_keys({}, {Documents({0, border, 12})}, 12, {{0, 12}}, {{0, 12}});
    AttentionSpec spec{1, mask, {0, 0}, ResultDtype::of_input};
    for (int layer = 0; layer < 3; ++layer) {
      spec.scale = 1 + layer;
      const AttentionOutput out = attention->forward(q, k, k, spec);
      attention->backward(q, q, k, k, out, spec);
      EXPECT_FALSE(at::equal(attention->forward(q, k, k, {7, mask, {0, 0}, spec.results}).lse, out.lse));
    }
  }
  EXPECT_EQ(kernels.cu_seqlens.size(), 3U);
}

TEST(CallsAttention, a_mask_that_no_kernel_knows_is_refused) {
  Emulated kernels;
  const auto attention = kernels.dense();
  const at::Tensor q = at::randn({1, 128, 1, 8});
  AttentionSpec spec{
      1, visible_keys({}, {Documents({0, 5, 128})}, 128, {{0, 128}}, {{0, 128}}), {0}, ResultDtype::of_input};
  EXPECT_THROW(attention->forward(q, q, q, spec), ConfigError);
  const AttentionOutput saved{q, at::zeros({1, 1, 128})};
  EXPECT_THROW(attention->backward(q, q, q, q, saved, spec), ConfigError);
  spec.keys = visible_keys({.sparse = {.block_tokens = 64}}, {}, 128, {{0, 128}}, {{0, 128}});
  EXPECT_THROW(attention->forward(q, q, q, spec), ConfigError);
  EXPECT_THROW(attention->backward(q, q, q, q, saved, spec), ConfigError);
}

std::string cudnn_refusal(const VisibleKeys& keys, int64_t width = 64) {
  AttentionSizes sizes{1, keys.queries(), keys.key_rows, 2, 1, width};
  return make_cudnn_kernel()->refusal(mask_calls(keys, 1).front(), sizes);
}

TEST(CudaKernels, cudnn_takes_whole_samples_and_the_parts_of_a_zig_zag_ring) {
  for (const Causality causality : {Causality::causal, Causality::full}) {
    EXPECT_EQ(cudnn_refusal(*visible_keys({.causality = causality}, {}, 64, {{0, 64}}, {{0, 64}})), "");
    const SampleLayout layout{64, 1, 4};
    for (int place = 0; place < 4; ++place)
      for (int other = 0; other < 4; ++other)
        EXPECT_EQ(cudnn_refusal(*visible_keys({.causality = causality}, {}, 64, layout.ring_spans(place),
                                              layout.ring_spans(other))),
                  "");
  }
}

TEST(CudaKernels, what_cudnn_does_not_know_is_refused_by_name) {
  const auto refusal = [](const LayerMask& mask, const std::vector<Documents>& documents,
                          const TokenSpan& queries, const TokenSpan& keys) {
    return cudnn_refusal(*visible_keys(mask, documents, 64, {queries}, {keys}));
  };
  const TokenSpan all{0, 64};
  EXPECT_THAT(refusal({.window = 8}, {}, all, all), HasSubstr("a window"));
  EXPECT_THAT(refusal({}, {Documents({0, 9, 64})}, all, all), HasSubstr("packed documents"));
  EXPECT_THAT(refusal({}, {}, {32, 64}, all), HasSubstr("32 query rows over 64 key rows, expected as many"));
  EXPECT_THAT(refusal({}, {}, {0, 1}, {0, 1}), HasSubstr("two or more"));
  EXPECT_THAT(refusal({.causality = Causality::full}, {Documents({0, 20, 40, 64})}, {10, 30}, {30, 64}),
              HasSubstr("10 of 20 query rows see 10 of 34 key rows"));
  EXPECT_THAT(cudnn_refusal(*causal_keys(64), 192), HasSubstr("head width 192"));
  for (const std::string& text : {refusal({.window = 8}, {}, all, all), cudnn_refusal(*causal_keys(64), 12)})
    EXPECT_THAT(text, HasSubstr("--attention flash or --attention auto"));
}

TEST(CudaKernels, flash_takes_every_call_of_widths_that_it_has) {
  const auto refusal = [](int64_t width) {
    return make_cuda_flash_kernel()->refusal(mask_calls(*causal_keys(64, 3), 1).front(),
                                             {1, 64, 64, 2, 1, width});
  };
  EXPECT_EQ(refusal(256), "");
  EXPECT_THAT(refusal(264), HasSubstr("--attention reference"));
  EXPECT_THAT(refusal(12), HasSubstr("head width 12"));
}

TEST(CallsAttention, nothing_in_or_nothing_seen_gives_zeros) {
  Emulated kernels;
  const auto attention = kernels.flash();
  const auto run = [&](int64_t tokens, const TokenSpans& queries, const TokenSpans& keys) {
    const at::Tensor q = at::randn({1, size_of(queries), 2, 8}), k = at::randn({1, size_of(keys), 1, 8});
    const AttentionSpec spec{1, visible_keys({}, {}, tokens, queries, keys), {0, 0}, ResultDtype::of_input};
    const AttentionOutput out = attention->forward(q, k, k, spec);
    EXPECT_TRUE(at::equal(out.o, at::zeros_like(q)));
    EXPECT_TRUE(out.lse.eq(-INFINITY).all().item<bool>());
    const AttentionGradients g = attention->backward(q, q, k, k, out, spec);
    EXPECT_TRUE(at::equal(g.dq, at::zeros_like(q)));
    EXPECT_TRUE(at::equal(g.dk, at::zeros_like(k)) && at::equal(g.dv, at::zeros_like(k)));
  };
  run(0, {}, {});
  run(5, {{0, 5}}, {});
  run(5, {}, {{0, 5}});
  run(9, {{0, 4}}, {{4, 9}});
  EXPECT_EQ(kernels.calls, 0);
}

}  // namespace
}  // namespace trireme
