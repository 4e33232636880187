// Compares a model's loss, logits and every gradient with a reference file made by another implementation:
// the proof that the numbers are right, for any number of ranks.
//
// The file is safetensors: input_ids [B, S] and labels [B, S] int64 (aligned as in Hugging Face: the target
// of position t is labels[t + 1], the last has none; of an encoder labels[t]; -100 is ignored), loss, logits [B, S, V]
// and grad.<Hugging Face parameter name>, fp32. Optional position_ids [B, S]: a 0 begins a packed document. Optional
// attention_mask [B, S]: 0 is padding, which no token sees; it must have no labels, and its logits are not compared.
// tools/hf_reference.py makes one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"

namespace trireme {

struct TensorError {
  std::string name;    // "loss", "logits", "grad.model.norm.weight"
  double error = 0;    // largest |ours - reference| / largest |reference|; infinite where ours is not finite
  double largest = 0;  // largest |reference|; of its unit, where the gradient vanishes (BERT's key biases)
};

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
