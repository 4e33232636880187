// This rank's share of a unit's fp32 masters, open to be stepped or set. Beside bf16 values that are
// offloaded alike it is split (kernels/master_bits.h):
//
//   split       values bf16 [E] + low int16 [E]                       4 bytes an element
//   separate    whole fp32 [E]; values of 16 bits, here or elsewhere  6
//   the values  whole fp32 [E]                                        4
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

struct MasterShare {
  at::Tensor whole;  // fp32; where nothing is ever stepped, the values; undefined: split
  at::Tensor low;    // undefined: not split
  // What compute reads, to be written with the masters; undefined: the masters themselves, or rounded when
  // the share is closed.
  at::Tensor values;

  bool split() const { return low.defined(); }
  MasterShare narrow(int64_t begin, int64_t elements) const;
  // fp32: the masters themselves, or of split ones a copy.
  at::Tensor fp32() const;
  // Masters and values become `from` [E], of any float dtype, on any device.
  void set(const at::Tensor& from) const;
};

}  // namespace trireme
