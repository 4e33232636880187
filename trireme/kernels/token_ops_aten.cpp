// The token-wise operations in ATen: any device, any float dtype, computed in fp32 (fp64 for fp64).
//
// Rows are worked on in blocks, so that what lies between two kernels does not grow with the tile: at most so
// many tensors of a block (forecast/tile_bytes.cpp counts them): norm 1 and backward 3, rotation 1.5 and
// backward with norms 3, gated unit 1 and backward 3, cross entropy 1 or, of 16-bit logits, 2.
#include "trireme/base/error.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/kernels/token_tiles.h"

namespace trireme::aten {
namespace {

template <typename Body>
void for_row_blocks(int64_t rows, int64_t row_elements, const Body& body) {
  for_tiles(rows, rows_of_block(row_elements), body);
}

// A copy, to be worked on in place.
at::Tensor widened(const at::Tensor& x) {
  return x.to(compute_dtype(x), /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true)
      .square_()
      .div_(static_cast<double>(x.size(-1)))
      .add_(eps)
      .rsqrt_();
}

// dy becomes d(x) of y = x * r * w with r = rsqrt(mean(x^2) + eps), for each row; x is written over. Added to
// dweight.
void norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, double eps,
                   at::Tensor& dweight) {
  const at::Tensor r = inverse_rms(x, eps);
  const at::Tensor hat = x.mul_(r);
  at::Tensor product = dy * hat;
  dweight.add_(product.flatten(0, -2).sum(0));
  const at::Tensor mean = product.mul_(weight).mean(-1, /*keepdim=*/true);
  dy.mul_(weight).sub_(hat.mul_(mean)).mul_(r);
}

// Of the heads, in the compute dtype; undefined where heads have no norm.
struct HeadNorms {
  at::Tensor q, k;  // [D]
  HeadNorms(const RotaryHeads& rotary, at::ScalarType dtype) {
    if (!rotary.q_norm.defined()) return;
    q = norm_factor(rotary.q_norm, rotary.norms_add_one).to(dtype);
    k = norm_factor(rotary.k_norm, rotary.norms_add_one).to(dtype);
  }
};

struct RotaryRows {
  at::Tensor cos, sin;  // [T, 1, r]
};
RotaryRows rotary_rows(const RotaryHeads& rotary, int64_t begin, int64_t tokens, at::ScalarType dtype) {
  const int64_t rows = rotary.cos.size(0), first = rotary.first_row + begin;
  const at::Tensor index =
      at::arange(first, first + tokens, at::TensorOptions().dtype(at::kLong).device(rotary.cos.device()))
          .remainder_(rows);
  return {rotary.cos.index_select(0, index).unsqueeze(1).to(dtype),
          rotary.sin.index_select(0, index).unsqueeze(1).to(dtype)};
}

enum class Turn { forward, back };

void rotate_in_place(const at::Tensor& x, const RotaryRows& rows, Turn turn) {
  const int64_t pairs = rows.cos.size(-1);
  const double sign = turn == Turn::forward ? 1 : -1;
  at::Tensor a = x.narrow(-1, 0, pairs), b = x.narrow(-1, pairs, pairs);
  const at::Tensor a_sin = a * rows.sin;
  a.mul_(rows.cos).addcmul_(b, rows.sin, -sign);
  b.mul_(rows.cos).add_(a_sin, sign);
}

// The heads that are not rotated.
void copy_others(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& to_TND) {
  const int64_t R = rotary.rotated_heads, others = from_TND.size(1) - R;
  if (to_TND.data_ptr() != from_TND.data_ptr())
    to_TND.narrow(1, R, others).copy_(from_TND.narrow(1, R, others));
}

// kernels/glu_gate.h, of values that lie anywhere.
void gate_out(GluGate gate, at::Tensor& to, const at::Tensor& x) {
  if (gate == GluGate::silu)
    at::silu_out(to, x);
  else
    at::gelu_out(to, x, "tanh");
}
// d(f(x)) becomes d(x).
void gate_backward_out(GluGate gate, at::Tensor& d, const at::Tensor& x) {
  if (gate == GluGate::silu)
    at::silu_backward_out(d, d, x);
  else
    at::gelu_backward_out(d, d, x, "tanh");
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                    bool adds_one) {
  at::Tensor y_TM = at::empty(x_TM.sizes(), x_TM.options().dtype(out_dtype));
  const at::Tensor w = norm_factor(weight, adds_one).to(compute_dtype(x_TM));
  for_row_blocks(x_TM.size(0), x_TM.size(1), [&](int64_t begin, int64_t count) {
    at::Tensor x = widened(x_TM.narrow(0, begin, count));
    y_TM.narrow(0, begin, count).copy_(x.mul_(inverse_rms(x, eps)).mul_(w));
  });
  return y_TM;
}

void rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one) {
  const at::Tensor w = norm_factor(weight, adds_one).to(compute_dtype(x_TM));
  for_row_blocks(x_TM.size(0), x_TM.size(1), [&](int64_t begin, int64_t count) {
    const at::Tensor d = widened(dy_TM.narrow(0, begin, count));
    norm_backward(d, widened(x_TM.narrow(0, begin, count)), w, eps, dweight);
    dx_TM.narrow(0, begin, count).add_(d);
  });
}

void rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, at::Tensor to_TND) {
  const int64_t H = rotary.query_heads, R = rotary.rotated_heads;
  const auto dtype = compute_dtype(from_TND);
  const HeadNorms norms(rotary, dtype);
  for_row_blocks(from_TND.size(0), R * from_TND.size(2), [&](int64_t begin, int64_t count) {
    const at::Tensor x = widened(from_TND.narrow(0, begin, count).narrow(1, 0, R));
    if (norms.q.defined()) {
      at::Tensor q = x.narrow(1, 0, H), k = x.narrow(1, H, R - H);
      q.mul_(inverse_rms(q, rotary.norm_eps)).mul_(norms.q);
      k.mul_(inverse_rms(k, rotary.norm_eps)).mul_(norms.k);
    }
    rotate_in_place(x, rotary_rows(rotary, begin, count, dtype), Turn::forward);
    to_TND.narrow(0, begin, count).narrow(1, 0, R).copy_(x);
  });
  copy_others(from_TND, rotary, to_TND);
}

void rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, at::Tensor to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm) {
  const int64_t H = rotary.query_heads, R = rotary.rotated_heads;
  const auto dtype = compute_dtype(from_TND);
  const HeadNorms norms(rotary, dtype);
  for_row_blocks(from_TND.size(0), R * from_TND.size(2), [&](int64_t begin, int64_t count) {
    const at::Tensor d = widened(from_TND.narrow(0, begin, count).narrow(1, 0, R));
    rotate_in_place(d, rotary_rows(rotary, begin, count, dtype), Turn::back);
    if (norms.q.defined()) {
      const at::Tensor x = widened(before_TND.narrow(0, begin, count).narrow(1, 0, R));
      norm_backward(d.narrow(1, 0, H), x.narrow(1, 0, H), norms.q, rotary.norm_eps, dq_norm);
      norm_backward(d.narrow(1, H, R - H), x.narrow(1, H, R - H), norms.k, rotary.norm_eps, dk_norm);
    }
    to_TND.narrow(0, begin, count).narrow(1, 0, R).copy_(d);
  });
  copy_others(from_TND, rotary, to_TND);
}

at::Tensor glu(GluGate gate, const at::Tensor& gate_up) {
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  for_row_blocks(T, I, [&](int64_t begin, int64_t count) {
    const at::Tensor rows = gate_up.narrow(0, begin, count);
    at::Tensor x = widened(rows.narrow(1, 0, I));
    gate_out(gate, x, x);
    act.narrow(0, begin, count).copy_(x.mul_(rows.narrow(1, I, I)));
  });
  return act;
}

at::Tensor glu_backward(GluGate gate, const at::Tensor& dact, at::Tensor& gate_up) {
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  for_row_blocks(T, I, [&](int64_t begin, int64_t count) {
    const at::Tensor rows = gate_up.narrow(0, begin, count), up = rows.narrow(1, I, I);
    const at::Tensor x = widened(rows.narrow(1, 0, I));
    at::Tensor gated = at::empty_like(x);
    gate_out(gate, gated, x);
    at::Tensor work = gated * up;
    act.narrow(0, begin, count).copy_(work);
    work.copy_(dact.narrow(0, begin, count));
    gated.mul_(work);
    gate_backward_out(gate, work.mul_(up), x);
    rows.narrow(1, 0, I).copy_(work);
    rows.narrow(1, I, I).copy_(gated);
  });
  return act;
}

void cross_entropy(at::Tensor& logits_TV, const at::Tensor& targets_T, at::Tensor& loss_T,
                   std::optional<double> scale, double cap) {
  const auto dtype = compute_dtype(logits_TV);
  for_row_blocks(logits_TV.size(0), logits_TV.size(1), [&](int64_t begin, int64_t count) {
    at::Tensor logits = logits_TV.narrow(0, begin, count);
    const at::Tensor targets = targets_T.narrow(0, begin, count), valid = targets.ge(0);
    const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
    at::Tensor d = at::log_softmax(logits.to(dtype), 1);  // log-probabilities, until exp_
    loss_T.narrow(0, begin, count)
        .copy_(at::where(valid, -d.gather(1, index).squeeze(1), at::zeros({}, d.options())));
    if (!scale) return;
    d.exp_();
    d.scatter_add_(1, index, at::full_like(index, -1, d.options()));
    d.mul_(valid.to(dtype).unsqueeze(1) * *scale);
    if (cap > 0) {
      const at::Tensor square = logits.to(dtype).div_(cap).square_();  // over logits that need no copy
      d.addcmul_(d, square, -1);
    }
    logits.copy_(d);
  });
}

}  // namespace trireme::aten

namespace trireme {

int64_t RotaryHeads::pairs_of(int64_t head_dim) const {
  const int64_t pairs = turning_pairs > 0 ? turning_pairs : head_dim / 2;
  TRIREME_ASSERT(2 * pairs <= head_dim && cos.size(1) == pairs && sin.size(1) == pairs, pairs,
                 " pairs turn in heads of ", head_dim, ", tables of ", cos.sizes(), " and ", sin.sizes());
  return pairs;
}

void cap_logits(at::Tensor& logits_TV, double cap) {
  logits_TV.div_(cap).tanh_().mul_(cap);
}

}  // namespace trireme
