// A step as it is planned: the forecast's inputs, with a batch and a recompute plan, and what memory does not
// depend on. Its model FLOPs, by which MFU is counted.
#pragma once

#include <cstdint>

#include "trireme/forecast/forecast_inputs.h"
#include "trireme/model/attention_pairs.h"

namespace trireme {

struct PlannedStep {
  ForecastInputs inputs;
  AttentionPairs attention_pairs;  // of one head, of a sample (ModelConfig::attention_pairs)
  double document_tokens = 0;      // of the longest document; 0: of the sample

  int64_t sequence_ranks() const { return int64_t{inputs.ulysses} * inputs.ring; }
  int64_t data_parallel() const { return inputs.ranks / sequence_ranks(); }
  double tokens() const;  // of all ranks, in a step
  // Of all ranks: 6 N T + 12 H D pairs, of each kind of heads, without what runs a second time.
  double model_flops() const;
};

// N of the model FLOPs: parameters that are multiplied, the head's matrix included, also where it is tied.
double matmul_parameters(const ModelSizes& model);

}  // namespace trireme
