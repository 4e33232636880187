// FlashAttention-4's kernels on the CPU, in fp64. It demands what flash-attn-4 4.0.0b36 does (interface.py, and
// the shapes and alignments that cmake/flash4/export_kernels.py compiles for), adds to dk_sum and dv_sum what it
// finds there, and counts calls. Can be made wrong.
#pragma once

#include "trireme/kernels/flash4_runner.h"

namespace trireme_test {

enum class Flash4Fault { none, diagonal_at_the_first_key, lse_in_bits };

struct Flash4Calls {
  int forward = 0, backward = 0;
};

class PlayedFlash4 final : public trireme::Flash4Runner {
 public:
  explicit PlayedFlash4(Flash4Calls* calls = nullptr, Flash4Fault fault = Flash4Fault::none)
      : calls_(calls), fault_(fault) {}
  void forward(const trireme::Flash4Forward& tensors, double scale, bool causal) override;
  void backward(const trireme::Flash4Backward& tensors, double scale, bool causal) override;

 private:
  Flash4Calls* calls_;
  Flash4Fault fault_;
};

}  // namespace trireme_test
