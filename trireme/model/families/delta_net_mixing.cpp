#include "trireme/model/families/delta_net_mixing.h"

#include <utility>

#include "trireme/kernels/causal_convolution.h"
#include "trireme/kernels/delta_rule.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

// Rows of the convolution's weights of this rank's q, k and v.
std::vector<HeadRange> convolved_rows(const LayerTensors& layer, const DeltaShare& share) {
  std::vector<HeadRange> spans = column_spans(layer.delta_net->heads, share);
  spans.resize(3);  // b and a are not convolved
  return spans;
}

// What the columns say beside what the rule reads.
struct Gates {
  at::Tensor a;      // with its bias
  at::Tensor speed;  // -exp(A)
  at::Tensor decay, beta;
};

class Mixing {
 public:
  Mixing(const LayerTensors& layer, const DeltaShare& share, const at::Tensor& columns_BSc,
         const at::Tensor& document_begins_BS)
      : heads_(layer.delta_net->heads),
        share_(share),
        rows_(convolved_rows(layer, share)),
        document_begins_BS_(document_begins_BS),
        spec_{key_of_value(heads_, share), document_begins_BS} {
    for (const HeadRange& rows : rows_) convolved_ += rows.size();
    std::vector<at::Tensor> weights;
    for (const HeadRange& rows : rows_)
      weights.push_back(layer.weights[kConvolution].narrow(0, rows.begin, rows.size()));
    weight_ = at::cat(weights);
    qkv_BSc_ = columns_BSc.narrow(2, 0, convolved_);
    const int64_t v = share.value.size();
    b_BSv_ = columns_BSc.narrow(2, convolved_, v);
    a_BSv_ = columns_BSc.narrow(2, convolved_ + v, v);
    const auto of_heads = [&](size_t slot) {
      const at::Tensor& values = layer.weights[slot];
      return values.narrow(0, share.value.begin, v).to(compute_dtype(values));
    };
    gates_.speed = of_heads(kDecay).exp().neg();
    gates_.a = a_BSv_.to(gates_.speed.scalar_type()) + of_heads(kDecayBias);
    gates_.decay = at::softplus(gates_.a) * gates_.speed;
    gates_.beta = b_BSv_.to(gates_.speed.scalar_type()).sigmoid();
  }

  at::Tensor forward() const {
    return delta_rule(inputs(convolved()), spec_, DeltaStates::dropped).o_BSVD.flatten(2);
  }

  at::Tensor backward(const at::Tensor& do_BSo, UnitGradients& gradients) const {
    at::Tensor dcolumns =
        at::empty({do_BSo.size(0), do_BSo.size(1), convolved_ + 2 * share_.value.size()}, qkv_BSc_.options());
    DeltaRuleGradients rule;
    {
      const DeltaRuleInputs in = inputs(convolved());
      const at::Tensor states = delta_rule(in, spec_, DeltaStates::kept).states_GBVDD;
      rule = delta_rule_backward(do_BSo.view(in.v_BSVD.sizes()), in, states, spec_);
    }
    const int64_t v = share_.value.size();
    const at::Tensor db = rule.dbeta_BSV * gates_.beta * (1 - gates_.beta);
    dcolumns.narrow(2, convolved_, v).copy_(db);
    const at::Tensor da = rule.ddecay_BSV * gates_.speed * gates_.a.sigmoid();
    dcolumns.narrow(2, convolved_ + v, v).copy_(da);
    add(gradients, kDecay, (rule.ddecay_BSV * gates_.decay).sum(at::IntArrayRef{0, 1}));
    add(gradients, kDecayBias, da.sum(at::IntArrayRef{0, 1}));
    const at::Tensor dqkv = at::cat({rule.dq_BSKD.flatten(2), std::exchange(rule.dk_BSKD, {}).flatten(2),
                                     std::exchange(rule.dv_BSVD, {}).flatten(2)},
                                    2);
    rule = {};
    const at::Tensor dweight = at::zeros(weight_.sizes(), gates_.speed.options());
    causal_convolution_backward(dqkv, qkv_BSc_, weight_, document_begins_BS_,
                                dcolumns.narrow(2, 0, convolved_), dweight);
    const at::Tensor& sum = gradients.to_add(kConvolution);
    if (!sum.defined()) return dcolumns;  // it is not trained
    int64_t row = 0;
    for (const HeadRange& rows : rows_) {
      sum.narrow(0, rows.begin, rows.size()).add_(dweight.narrow(0, row, rows.size()));
      row += rows.size();
    }
    return dcolumns;
  }

 private:
  at::Tensor convolved() const { return causal_convolution(qkv_BSc_, weight_, document_begins_BS_); }
  DeltaRuleInputs inputs(const at::Tensor& qkv_BSc) const {
    const int64_t keys = share_.key.size() * heads_.key_width;
    const auto heads = [&](int64_t begin, int64_t columns, int64_t width) {
      return qkv_BSc.narrow(2, begin, columns).unflatten(2, {columns / width, width});
    };
    return {heads(0, keys, heads_.key_width), heads(keys, keys, heads_.key_width),
            heads(2 * keys, convolved_ - 2 * keys, heads_.value_width), gates_.decay, gates_.beta};
  }
  void add(UnitGradients& gradients, size_t slot, const at::Tensor& of_heads) const {
    gradients.to_add(slot).narrow(0, share_.value.begin, share_.value.size()).add_(of_heads);
  }

  const DeltaHeads& heads_;
  const DeltaShare& share_;
  const std::vector<HeadRange> rows_;
  const at::Tensor& document_begins_BS_;
  const DeltaRuleSpec spec_;
  int64_t convolved_ = 0;
  at::Tensor weight_, qkv_BSc_, b_BSv_, a_BSv_;
  Gates gates_;
};

}  // namespace

at::Tensor delta_net_forward(const LayerTensors& layer, const DeltaShare& share,
                             const at::Tensor& columns_BSc, const at::Tensor& document_begins_BS) {
  const at::NoGradGuard no_grad;
  if (share.value.size() == 0)
    return at::empty({columns_BSc.size(0), columns_BSc.size(1), 0}, columns_BSc.options());
  return Mixing(layer, share, columns_BSc, document_begins_BS).forward();
}

at::Tensor delta_net_backward(const LayerTensors& layer, UnitGradients& gradients, const DeltaShare& share,
                              const at::Tensor& columns_BSc, const at::Tensor& document_begins_BS,
                              const at::Tensor& do_BSo) {
  const at::NoGradGuard no_grad;
  if (share.value.size() == 0) return at::empty_like(columns_BSc);
  return Mixing(layer, share, columns_BSc, document_begins_BS).backward(do_BSo, gradients);
}

}  // namespace trireme::decoder
