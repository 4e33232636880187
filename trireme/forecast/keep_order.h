// Which parts of a layer are kept before others where memory does not hold all: first what costs most time
// a byte to make again (recompute_cost.h). The one rule of --recompute auto and of the planner. So
// attention comes first where a query sees more keys than about M / 2. A configuration is a position: the
// first part on 0 .. L of the last layers, then the second part beside it, then the third.
#pragma once

#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

class KeepOrder {
 public:
  // The same on every rank. `inputs` have a sample's tokens. Attention alone where layers run in groups,
  // which keep no other part, and where what is kept is offloaded: the rest is more
  // than can be moved in the time.
  explicit KeepOrder(const ForecastInputs& inputs);
  // Of one part.
  KeepOrder(KeptPart part, int64_t layers) : parts_{part}, layers_(layers) {}

  const std::vector<KeptPart>& parts() const { return parts_; }
  int64_t layers() const { return layers_; }
  int64_t last_position() const { return static_cast<int64_t>(parts_.size()) * layers_; }
  // 0 <= position <= last_position(); the more, the more is kept.
  KeptLayers at(int64_t position) const;

 private:
  std::vector<KeptPart> parts_;
  int64_t layers_ = 0;
};

}  // namespace trireme
