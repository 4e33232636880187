#include "trireme/model/expert_config.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

// What a mixture of experts may ask for that is not built.
void refuse_unbuilt_experts(const ConfigKeys& keys, const ExpertKind& kind) {
  keys.refuse_unless_absent(
      {"n_shared_experts", "num_shared_experts", "first_k_dense_replace", "n_group", "topk_group",
       "routed_scaling_factor", "scoring_func"},
      "several experts that every token shares, groups of experts and other routers are "
      "not supported");
  if (kind.shared_width == 0)
    keys.refuse_unless_none({kSharedWidthKey}, "this family has no expert that every token shares");
  if (keys.boolean("output_router_logits", false))
    keys.refuse("output_router_logits",
                "transformers would add a loss that balances the load of the experts, which is not built; "
                "set it to false, as published models have it");
  if (keys.number("router_jitter_noise", 0) != 0)
    keys.refuse("router_jitter_noise", "noise before the router is not built; set it to 0");
  if (keys.integer("decoder_sparse_step", 1) != 1)
    keys.refuse("decoder_sparse_step", "every layer must have experts: only 1 is supported");
  if (keys.has("mlp_only_layers") && keys.json()["mlp_only_layers"] != Json::array())
    keys.refuse("mlp_only_layers", "every layer must have experts: only an empty list is supported");
}

int64_t number_of_experts(const ConfigKeys& keys, const ExpertKind& kind, int64_t layers) {
  constexpr int64_t kMost_of_all_layers = 1 << 18;  // each has three names; 16 times as many as DeepSeek's
  const int64_t most = kMost_of_all_layers / layers;
  if (!kind.counts_local)
    keys.refuse_unless_absent({"num_local_experts"}, "transformers reads num_experts alone in this family");
  if (!keys.has("num_local_experts")) return keys.size("num_experts", kind.experts, most);
  const int64_t experts = keys.size("num_local_experts", kind.experts, most);
  if (keys.has("num_experts") && keys.size("num_experts", experts) != experts)
    keys.refuse("num_experts", cat("num_local_experts is ", experts, "; leave one of them out"));
  return experts;
}

bool weights_sum_to_one(const ConfigKeys& keys, ExpertKind::SumToOne rule) {
  const char* const kKey = "norm_topk_prob";
  if (rule != ExpertKind::SumToOne::always)
    return keys.boolean(kKey, rule == ExpertKind::SumToOne::unless_denied);
  if (!keys.boolean(kKey, true)) keys.refuse(kKey, "this family's weights sum to one in transformers");
  return true;
}

}  // namespace

void read_experts(const ConfigKeys& keys, const DecoderKind& kind, ModelConfig& config) {
  const ExpertKind& experts = *kind.experts;
  if (kind.gemma == DecoderKind::Gemma::fourth)
    for (const char* key : {"num_experts", experts.per_token_key, experts.width_key})
      if (!keys.has(key))
        keys.refuse(key, "enable_moe_block asks for experts, of which it says how many, or how wide");
  refuse_unbuilt_experts(keys, experts);
  config.num_experts = number_of_experts(keys, experts, config.num_hidden_layers);
  config.experts_per_token = keys.size(experts.per_token_key, experts.experts_per_token);
  if (config.experts_per_token > config.num_experts)
    keys.refuse(experts.per_token_key, cat("there are ", config.num_experts, " experts"));
  config.intermediate_size = keys.size(experts.width_key, kind.intermediate_size);
  config.expert_kind = kind.experts;
  config.expert_weights_sum_to_one = weights_sum_to_one(keys, experts.sum_to_one);
  if (experts.shared_width > 0)
    config.shared_intermediate_size = keys.size(experts.shared_width_key, experts.shared_width);
}

}  // namespace trireme
