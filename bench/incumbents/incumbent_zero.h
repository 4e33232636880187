// DeepSpeed's ZeRO 3 on one rank: shares of the model's states, parameters that are gathered for their use,
// gradients that are reduced by the bucket (runtime/zero/stage3.py, partitioned_param_coordinator.py).
#pragma once

#include <deque>
#include <vector>

#include "bench/incumbents/incumbent_trace.h"

namespace trireme {

class IncumbentZero {
 public:
  IncumbentZero(const IncumbentRun& run, IncumbentTrace& trace);

  // Whole parameters of these numbers of elements, fetched together. Nothing where the only rank has them.
  std::vector<Held> gather(const std::vector<int64_t>& elements);
  // The parameters of a layer, and what is fetched ahead of the next ones; `live_elements` of others are
  // gathered.
  std::vector<Held> gather_layer(int64_t live_elements);
  // Whether the parameters of so many layers are no more than may be gathered at a time.
  bool may_be_live(int64_t layers) const;
  void release_ahead() { ahead_.clear(); }  // after the last layer
  // A parameter's whole gradient goes to the bucket; a full bucket is reduced first.
  void add_gradient(Held gradient, int64_t elements);
  void reduce_bucket();
  void step_optimizer();  // at the end of a step

 private:
  struct Waiting {
    Held gradient;  // where it is larger than the bucket; else it was copied there
    int64_t elements = 0;
  };
  std::vector<int64_t> layer_parameters() const;  // matrices, in the order of their use
  int64_t share(int64_t elements) const { return (elements + run_.ranks - 1) / run_.ranks; }

  const IncumbentRun& run_;
  IncumbentTrace& trace_;
  std::vector<Held> states_;
  std::deque<Held> ahead_;  // parameters that were fetched for the layers to come
  std::vector<Waiting> waiting_;
  int64_t waiting_elements_ = 0;
};

}  // namespace trireme
