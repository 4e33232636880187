// How many bytes one rank's tensors take in a training step, category by category, known before the run:
// exact sums of the buffers that the code holds when it is fullest, of which this page is the list. In int64.
//
//   B samples of S tokens in one micro-batch, s of each on this rank; M hidden, I MLP width, H query and K
//   key/value heads of D, V vocabulary; h and k heads of this rank; e bytes of a stored value, t of one in a
//   tile (the dtype of the weights). A unit is the embedding, a layer, or the head.
//
//   parameters     all units x t; with ZeRO 3 the rank's shares, the unit at work and the next one
//   gradients      all units x 4; with ZeRO 2 and 3 the rank's shares and the open units; with
//                  update_in_backward the open units, and where the optimizer is offloaded the rank's share
//                  of the unit closed before
//   optimizer      of the rank's shares: masters (unless t is fp32), the moments; on disk: of four units
//   activations    what recompute_plan.h keeps of every layer, the running x, what a group made again
//   attention      of one layer: q, k, v, o, lse, do, dq, dk, dv; the kernel's packed tiles
//   tiles          of T tokens: forward 2 M + 3 I values (2 M + I where gate|up is kept), backward 4 M + 4 I;
//                  the head 3 M + V; encoders: the larger of M + 2 I and 2 M + I, that of 3 M + 2 I and
//                  4 M + I; 6 M + V (tile_bytes.h)
//   communication  one exchange's packed and received heads, or one unit's sum
//   snapshot       with save_in_background: 4 bytes of each state of the units that the rank writes
//   other          rotary tables, positions, losses
#pragma once

#include "trireme/device/memory_category.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/memory_timeline.h"

namespace trireme {

// What a step takes at most: each category by itself, and all together. Where something is offloaded, moments
// are narrow, or units are stepped in backward, the total is an upper bound. So is each part that depends on
// when a disk or a worker is done: what is on its way to a disk, and what is stepped beside forward and
// backward.
struct MemoryForecast {
  MemoryBytes peak;
  int64_t peak_total_bytes = 0;
  MemoryBytes host;        // beside a GPU, of the host's memory
  MemorySnapshot fullest;  // when all together are at their most: peak_total_bytes by category
};
MemoryForecast memory_forecast(const ForecastInputs& inputs);

// What a step takes of the host's memory beside a GPU: what is offloaded, and what passes through on its way
// to a disk. All zero on a CPU, whose memory is the device's. Tokens and what is read while a run begins are
// not counted.
//
//   parameters   offloaded to the host: this rank's shares; to disk: those of four units that are stepped, read
//                ahead or on their way back (three with update_in_backward), and of the one that was uploaded
//                last, of two where units are stepped beside forward and backward
//   gradients    where the optimizer is offloaded: the sums that it steps with ZeRO 2 and 3, else one unit's
//   optimizer    as on a CPU
//   snapshot     as on a CPU
//   activations  offloaded to the host: what all layers keep but the last ones, which stay; to disk: of three
//                of these layers
MemoryBytes host_memory_bytes(const ForecastInputs& inputs);

}  // namespace trireme
