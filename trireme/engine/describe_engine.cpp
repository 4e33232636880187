// What an engine says of itself, for logs and `info`.
#include <algorithm>

#include "trireme/attention/ulysses.h"
#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/engine/engine.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/model/make_adapters.h"

namespace trireme {

std::string Engine::attention_kernel() const {
  return attention_->name();
}

bool Engine::attends_by_reference() const {
  return local_attention_->by_reference();
}

std::string Engine::description() const {
  const EngineOptions& options = options_;
  const at::ScalarType storage = storage_dtype(options.precision);
  const at::ScalarType tile = forecast_inputs_.tile_bytes < kFloat_bytes ? storage : at::kFloat;
  std::string text = config_.whole_type.empty() ? ""
                                                : cat("the language model of a ", config_.whole_type,
                                                      ", which reads no images here; ");
  text += "attention " + attention_kernel();
  const auto documents_of = [&](const AttentionHeads& heads) {
    return local_attention_->for_documents(
        {round_up(forecast_inputs_.rank_heads, options.head_chunks) / options.head_chunks,
         heads.query / heads.key_value, heads.width});
  };
  const std::string documents = documents_of(config_.heads());
  if (!documents.empty())
    text +=
        cat("; ", documents,
            documents_of(config_.heads_of_full_attention()) == documents ? "" : ", in layers with a window");
  if (config_.delta_net)
    text += cat("; a DeltaNet in place of it in ", std::ranges::count(config_.delta_layers, true), " of ",
                config_.num_hidden_layers, " layers");
  text += cat("; values in ", dtype_name(storage), ", matmuls in ", dtype_name(tile));
  if (options.purpose == Purpose::training) text += "; recompute " + forecast_inputs_.recompute.description();
  if (recompute_choice_) text += ", " + recompute_choice_->description();
  text +=
      cat("; tiles of ", forecast_inputs_.tile_tokens, " tokens, logits of ",
          forecast_inputs_.logits_tile_tokens, "; ulysses ", mesh_.ulysses->size(), ", ring ",
          mesh_.ring->size(), ", data parallel ", mesh_.dp_size, "; ZeRO ", static_cast<int>(options.zero));
  if (options.head_chunks > 1) text += cat("; ", options.head_chunks, " head chunks");
  if (!options.sparse.dense()) {
    const SparseBlocks& sparse = options.sparse;
    text += cat("; sparse blocks of ", sparse.block_tokens, ": ", sparse.local_blocks, " local, ",
                sparse.global_blocks, " global");
    if (sparse.stride_blocks > 0) text += cat(", every ", sparse.stride_blocks, "th");
  }
  const OffloadOptions& offload = options.offload;
  if (offload.parameters != Offload::none || offload.optimizer != Offload::none ||
      offload.activations != Offload::none)
    text += cat("; offload of parameters ", name_of(offload.parameters), ", optimizer ",
                name_of(offload.optimizer), ", activations ", name_of(offload.activations),
                text_of_resident_layers(forecast_inputs_));
  if (options.device.is_cpu() && (offload.parameters == Offload::cpu || offload.activations == Offload::cpu))
    text += " (cpu moves neither parameters nor activations: they are in the host's memory already)";
  if (options.update_in_backward) text += "; updates in backward";
  if (layout_.adapted())
    text += "; " + text_of_lora(with_few_modules_named(lora_), adapted_modules(layout_.adapters));
  return text;
}

}  // namespace trireme
