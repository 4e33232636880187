// Small models with every parameter far from zero, written to a temporary folder, and batches for them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/token_batch.h"
#include "trireme/engine/engine.h"
#include "trireme/model/lora.h"

#include "tests/support/temporary_folder.h"

namespace trireme::testing {

// A Hugging Face config.json of a small Llama with `query_heads` and `key_value_heads`; tests change what
// they need.
Json tiny_llama_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// The same of a small Gemma 2, whose scores and logits are near their caps. The first layer slides.
Json tiny_gemma2_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// The same of a small Gemma 3, of which every second layer slides over 17 tokens.
Json tiny_gemma3_config(int64_t query_heads = 4, int64_t key_value_heads = 2);
// Layers that do not slide have heads twice as wide, and keys that are their values.
Json tiny_gemma4_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// With 4 experts, of which a token has 2, beside its MLP.
Json tiny_gemma4_experts_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// Three layers, of which the second slides, and the last has a wider MLP and takes keys and values of the first;
// each is told 16 values of its token.
Json tiny_gemma4_e2b_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// Every second layer has attention, gated and with half of each head turned; the others have a DeltaNet of
// one key head for two value heads.
Json tiny_qwen3_5_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// The same of a small mixture of 5 experts, of which a token has 2 (Qwen3-MoE).
Json tiny_mixture_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// A tiny_qwen3_5 with 4 experts, of which a token has 2, beside one that every token has (Qwen3-Next).
Json tiny_qwen3_next_config(int64_t query_heads = 4, int64_t key_value_heads = 2);

// The same of a small BERT with `heads`: 64 positions, padding id 3.
Json tiny_bert_config(int64_t heads = 4);

// Writes config.json and weights: normal values of size `spread`, around 1 where they scale a norm.
void write_tiny_model(const std::filesystem::path& folder, const Json& config, double spread = 0.15,
                      const ModelFamilies& families = model_families());

// Writes a LoRA adapter of the model in `model`: normal values of size `spread` in both of its matrices.
void write_tiny_adapter(const std::filesystem::path& model, const std::filesystem::path& folder,
                        const LoraConfig& lora, double spread = 0.15);

// The same random batch for any number of ranks: this rank's tokens of B samples of S = layout.tokens; about
// one target in five is -100. `documents` of each sample, or none: their last tokens have no target either.
TokenBatch slice_of_batch(int64_t batch, int64_t vocabulary, uint64_t seed, const SampleLayout& layout,
                          int rank, const std::vector<Documents>& documents = {});
// Over `ranks` Ulysses ranks.
TokenBatch slice_of_batch(int64_t batch, int64_t tokens, int64_t vocabulary, uint64_t seed, int ranks,
                          int rank);

// Every rank gives the same whole unit. Collective with ZeRO 0.
void restore_unit(Engine& engine, int unit, const std::string& state, const at::Tensor& whole);

// Every gradient of what is trained after accumulate_gradients, by parameter name.
std::map<std::string, at::Tensor> all_gradients(Engine& engine);

}  // namespace trireme::testing
