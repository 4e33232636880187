#include "trireme/shard/loss_scaler.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

namespace {

bool possible(double scale) {
  return scale >= 1 && scale <= kLargestLossScale;  // false for NaN
}

}  // namespace

LossScaler::LossScaler(const LossScalerSettings& settings)
    : scale_(settings.initial), growth_steps_(settings.growth_steps) {
  TRIREME_ASSERT(possible(settings.initial) && settings.growth_steps >= 1, "scale ", settings.initial, ", ",
                 settings.growth_steps, " steps");
}

void LossScaler::update(bool overflow) {
  if (overflow) {
    if (scale_ == 1)
      throw DataErrorOnAllRanks(
          "gradients overflow fp16 even at loss scale 1: got infinities or NaN, expected finite numbers; use "
          "bf16 or fp32, or a lower learning rate, or look at the data of this step");
    scale_ = std::max(scale_ / 2, 1.0);
    clean_steps_ = 0;
  } else if (++clean_steps_ >= growth_steps_) {
    scale_ = std::min(scale_ * 2, kLargestLossScale);
    clean_steps_ = 0;
  }
}

void LossScaler::restore(double scale, int64_t clean_steps) {
  if (!possible(scale) || clean_steps < 0)
    throw DataError(cat("saved loss scale: got ", scale, " after ", clean_steps,
                        " steps, expected a number from 1 to 2^127 and no negative count; the checkpoint is "
                        "damaged: resume from another one"));
  scale_ = scale;
  clean_steps_ = clean_steps;
}

}  // namespace trireme
