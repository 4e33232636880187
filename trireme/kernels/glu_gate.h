// What a gated linear unit does to its gate (arXiv 2002.05202): act = f(gate) * up. Both kinds have the form
//
//   f(x)  = x s with s = sigmoid(a(x))      silu: a(x) = x
//   f'(x) = s + x s (1 - s) a'(x)           gelu_tanh: a(x) = x (kGeluLinear + kGeluCubic x^2)
//
// since (1 + tanh(u)) / 2 = sigmoid(2 u): the GELU's form with tanh (arXiv 1606.08415, section 2). No torch
// here.
#pragma once

namespace trireme {

enum class GluGate {
  silu,       // SwiGLU
  gelu_tanh,  // GeGLU, as Gemma has it
};

inline constexpr float kGeluLinear = 1.5957691216F;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.07135481627F;  // 0.044715 of it

}  // namespace trireme
