#include "trireme/forecast/memory_options.h"

#include <algorithm>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/sequence_ranks.h"

namespace trireme {

std::vector<MemoryOption> memory_options(const ForecastInputs& inputs) {
  using enum MemoryCategory;
  const MemoryForecast now = memory_forecast(inputs);
  std::vector<MemoryOption> options;
  const auto propose = [&](const std::string& option, MemoryCategory category,
                           const std::function<void(ForecastInputs&)>& change,
                           MemoryOptionKind kind = MemoryOptionKind::policy) {
    ForecastInputs changed = inputs;
    change(changed);
    const MemoryForecast then = memory_forecast(changed);
    for (const MemorySpace space : {MemorySpace::device, MemorySpace::host}) {
      const auto bytes_of = [&](const MemoryForecast& forecast) {
        return (space == MemorySpace::host ? forecast.host : forecast.peak)[category];
      };
      const int64_t before = bytes_of(now), after = bytes_of(then);
      if (before > after)
        options.push_back({option, category,
                           static_cast<double>(before - after) / static_cast<double>(before), before, space,
                           kind});
    }
  };
  // Beside a GPU there is the host before the disk.
  const auto next_offload = [&](Offload offload) {
    return offload == Offload::none && !inputs.device_is_host ? Offload::cpu : Offload::disk;
  };
  if (const auto more = more_sequence_ranks(inputs))
    for (const MemoryCategory category : kAllMemoryCategories)
      propose(more->option, category, [&](auto& changed) { changed = more->inputs; });
  const std::string shorter = cat("--max_seq_length ", std::max<int64_t>(1, inputs.tokens / 2));
  for (const MemoryCategory category : {activations, attention, communication})
    propose(
        shorter, category,
        [](auto& changed) {
          changed = with_batch(changed, changed.batch, std::max<int64_t>(1, changed.tokens / 2));
        },
        MemoryOptionKind::smaller_task);
  if (inputs.batch > 1 && !inputs.update_in_backward)
    propose("a batch of 1 with --gradient_accumulation_steps", activations,
            [](auto& changed) { changed.batch = 1; });

  const RecomputePlan& plan = inputs.recompute;
  constexpr Recompute full = Recompute::full, keep_attention = Recompute::keep_attention;
  // Groups of layers and offload refuse what keeps more.
  const bool keeps_little = plan.policy != Recompute::none && !plan.keeps_more_than_attention();
  if (plan.policy != full) {
    const auto with_policy = [&](Recompute policy) {
      return [policy](auto& changed) {
        changed.recompute = {policy, changed.recompute.checkpoint_every, 1, changed.recompute.layers};
      };
    };
    propose("--recompute full", activations, with_policy(full));
    if (plan.keeps_more_than_attention())
      propose("--recompute keep_attention", activations, with_policy(keep_attention));
    if (plan.keep_fraction > 0.5 && (plan.policy == Recompute::none || keeps_little))
      propose(cat("--recompute ", name_of(plan.policy), " --keep_fraction 0.5"), activations,
              [](auto& changed) { changed.recompute.keep_fraction = 0.5; });
  }
  for (const int64_t every : {2, 4})
    if (every > plan.checkpoint_every && every <= plan.layers && keeps_little)
      propose(cat("--checkpoint_every ", every), activations,
              [every](auto& changed) { changed.recompute.checkpoint_every = every; });
  if (inputs.offload.activations != Offload::disk && keeps_little)
    propose(cat("--offload_activations ", name_of(next_offload(inputs.offload.activations))), activations,
            [&](auto& changed) { changed.offload.activations = next_offload(changed.offload.activations); });

  if (inputs.offload.optimizer != Offload::disk)
    propose(cat("--offload_optimizer ", name_of(next_offload(inputs.offload.optimizer))), optimizer,
            [&](auto& changed) { changed.offload.optimizer = next_offload(changed.offload.optimizer); });
  if (inputs.state_bytes == 4)
    propose("--optim_state_dtype bf16", optimizer, [](auto& changed) { changed.state_bytes = 2; });
  // With one rank, as two would be.
  const std::string where = inputs.ranks > 1 ? "" : " on 2 ranks or more";
  for (const auto& [stage, category] : {std::pair(1, optimizer), {2, gradients}, {3, parameters}})
    if (inputs.zero < stage)
      propose(cat("--zero ", stage, where), category, [stage = stage](auto& changed) {
        changed.zero = stage;
        changed.ranks = std::max(2, changed.ranks);
      });
  if (!inputs.update_in_backward)
    propose("--update_in_backward (with --max_grad_norm 0, without accumulation or fp16)", gradients,
            [](auto& changed) { changed.update_in_backward = true; });
  if (inputs.zero == 3 && inputs.offload.parameters != Offload::disk)
    propose(cat("--offload_params ", name_of(next_offload(inputs.offload.parameters))), parameters,
            [&](auto& changed) { changed.offload.parameters = next_offload(changed.offload.parameters); });

  propose("no --save_in_background", snapshot, [](auto& changed) { changed.save_in_background = false; });

  if (inputs.ulysses > 1 && 2 * inputs.head_chunks <= inputs.rank_heads)
    propose(cat("--head_chunks ", 2 * inputs.head_chunks), attention,
            [](auto& changed) { changed.head_chunks *= 2; });

  const int64_t rows = inputs.batch * inputs.shard_tokens;
  for (const bool head : {false, true}) {
    const int64_t tile = std::min(rows, head ? inputs.logits_tile_tokens : inputs.tile_tokens);
    if (tile < 32) continue;
    propose(cat(head ? "--logits_tile_tokens " : "--tile_tokens ", tile / 2), tiles,
            [head, tile](auto& changed) {
              (head ? changed.logits_tile_tokens : changed.tile_tokens) = tile / 2;
            });
  }
  return options;
}

}  // namespace trireme
