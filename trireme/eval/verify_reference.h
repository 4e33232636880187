// Compares a model's loss, logits and every gradient with a reference file of another implementation, on any
// number of ranks.
//
// The file is safetensors: input_ids [B, S] and labels [B, S] int64, loss, logits [B, S, V] and
// grad.<Hugging Face parameter name>, fp32. Labels align as in Hugging Face: the target of position t is
// labels[t + 1], and the last position has none; for an encoder it is labels[t]. -100 is ignored. Optional
// position_ids [B, S]: a 0 begins a packed document. Optional attention_mask [B, S]: 0 is padding, which no
// token sees and which must have no labels; its logits are not compared. tools/hf_reference.py makes a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/eval/tensor_extremes.h"

namespace trireme {

struct VerifyResult {
  std::vector<TensorError> tensors;  // worst first
  double loss = 0;
  double reference_loss = 0;
  double tolerance = 0;
  int ranks = 1;
  int64_t batch = 0;
  int64_t sequence_tokens = 0;
  std::string description;  // of the engine: kernels and precision in use

  bool passed() const;
  Json to_json() const;
  // The `rows` worst tensors and the verdict.
  std::string table(int rows) const;
};

// Collective over the world; every rank gets the same result. Throws DataError (a tensor is missing or has
// another shape, an id is outside the vocabulary, positions that neither count up nor begin again at 0).
VerifyResult verify_reference(World& world, const std::filesystem::path& model_dir,
                              const std::filesystem::path& reference, const EngineOptions& options,
                              double tolerance);

}  // namespace trireme
