// The numbers beside the tensors that a checkpoint must hold. No torch here.
#pragma once

#include <cstdint>

namespace trireme {

struct TrainingProgress {
  int64_t optimizer_steps = 0;  // updates made
  double loss_scale = 0;        // fp16 alone; 0: none
  int64_t clean_steps = 0;      // since the loss scale last changed
};

}  // namespace trireme
