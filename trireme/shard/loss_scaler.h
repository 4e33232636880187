// Dynamic loss scaling (arXiv 1710.03740): fp16 has no room for small gradients, so the loss is multiplied by
// `scale` before backward, the summed gradients are divided by it before the update, and a step whose
// gradients overflow is not taken.
//
//   after each step    update(overflow)    the same value on every rank, so that all keep one scale
//
//   scale = settings.initial           at first
//   scale = min(2 scale, 2^127)        after growth_steps steps in a row without overflow
//   scale = max(scale / 2, 1)          at each overflow; an overflow at scale 1 is an error
#pragma once

#include <cstdint>

namespace trireme {

// The largest power of two of fp32, in which gradients are scaled.
inline constexpr double kLargestLossScale = 0x1p127;

struct LossScalerSettings {
  double initial = 65536;
  int64_t growth_steps = 2000;
};

class LossScaler {
 public:
  // The initial scale is a number in [1, 2^127], and the steps are positive.
  explicit LossScaler(const LossScalerSettings& settings);

  // The two numbers that a checkpoint must hold.
  double scale() const { return scale_; }
  int64_t clean_steps() const { return clean_steps_; }  // since the last change of the scale

  // Records a step. `overflow`: its gradients, summed over ranks, were not all finite. Throws
  // DataErrorOnAllRanks at an overflow at scale 1: no smaller scale helps.
  void update(bool overflow);

  // Throws DataError when no scaler can have had these numbers.
  void restore(double scale, int64_t clean_steps);

 private:
  double scale_;
  int64_t growth_steps_;
  int64_t clean_steps_ = 0;
};

}  // namespace trireme
