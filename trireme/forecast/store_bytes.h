// Bytes of what the stores hold during a step: parameters, gradients, the optimizer's state, and their sums
// over ranks.
#pragma once

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// This rank's share of each unit; the whole unit where nothing is sharded.
std::vector<int64_t> rank_shares(const ForecastInputs& inputs);
// The most that `width` neighbours come to.
int64_t largest_run(const std::vector<int64_t>& values, size_t width);
// Of shares on a disk, what is in memory while they are stepped. Where backward steps them as it closes them, none is
// read ahead.
int64_t on_disk_elements(const ForecastInputs& inputs, const std::vector<int64_t>& shares);

// The same run of a model that is what is trained: of LoRA the units are those of adapters, whole on every rank and
// on the device.
ForecastInputs trained_inputs(const ForecastInputs& inputs);

// Which units are whole at a moment of the passes, where stores are sharded.
struct UnitsInMemory {
  size_t gathered = 0;    // parameters: position in training_order
  bool released = false;  // that unit is not whole any more, the next one is on its way
  int open = -1;          // gradients: the unit that is open; -1: none
  int summing = -1;       // that is summed over ranks beside the backward of another; -1: none
  int closed = -1;        // the last whose backward is done; -1: none
};

// Bytes of this rank's device memory at the fullest point of a step, without what is offloaded elsewhere.
int64_t parameter_bytes(const ForecastInputs& inputs);
int64_t gradient_bytes(const ForecastInputs& inputs);
int64_t optimizer_bytes(const ForecastInputs& inputs);
// Of an element's master beside the value that compute reads, and whether it is the bits that this lacks.
int64_t master_bytes(const ForecastInputs& inputs);
bool splits_masters(const ForecastInputs& inputs);
// Of a checkpoint that is written while training goes on: the states, fp32, of the units that this rank
// writes (train/checkpoint_shard.h), and padding that no checkpoint holds. In the host's memory.
int64_t snapshot_bytes(const ForecastInputs& inputs);
// Of the sum of a unit's gradient over ranks; and before it is finished (sums_go_beside_backward), when the
// fp32 gradient itself is counted as one.
int64_t sum_buffer_bytes(const ForecastInputs& inputs, int64_t unit_elements);
int64_t begun_sum_bytes(const ForecastInputs& inputs, int64_t unit_elements);
// What the stores hold at each moment of the passes.
class StoresOverStep {
 public:
  explicit StoresOverStep(const ForecastInputs& inputs);
  int64_t parameter_bytes(const UnitsInMemory& units) const;
  int64_t gradient_bytes(const UnitsInMemory& units) const;
  int64_t most_parameter_bytes() const { return most_parameter_bytes_; }
  int64_t most_gradient_bytes() const;

 private:
  int64_t leaving_elements(const UnitsInMemory& units) const;

  const ForecastInputs& inputs_;
  int64_t most_parameter_bytes_;
  int64_t staying_parameters_ = 0, staying_gradients_ = 0;  // elements beside the units at work
  bool parameters_move_, gradients_move_;
  std::vector<int64_t> trained_shares_;  // by unit, of what is trained: of LoRA its adapters
  std::vector<int64_t> whole_, next_;    // elements, by the position in training_order
};

}  // namespace trireme
