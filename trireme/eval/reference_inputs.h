// The checked inputs of a reference file for `trireme verify`: tokens, targets, and each sample's
// documents.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/documents.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/model_config.h"

namespace trireme {

struct ReferenceInputs {
  at::Tensor input_ids;              // [B, S]
  at::Tensor targets;                // [B, S], shifted
  std::vector<Documents> documents;  // empty: each sample is one
  at::Tensor attention_mask;         // [B, S], or undefined
  bool shifted = true;               // targets are the labels of the next token
};

// Throws DataError that names the file and the tensor: missing, of another shape or type, with ids outside
// the vocabulary, or with labels where there can be none.
ReferenceInputs read_reference_inputs(const SafetensorsFile& file, const ModelConfig& config);

}  // namespace trireme
