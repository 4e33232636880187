#include "trireme/forecast/memory_options.h"

#include <algorithm>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/tile_rules.h"

namespace trireme {
namespace {

using enum MemoryCategory;

class Proposals {
 public:
  explicit Proposals(const ForecastInputs& inputs) : inputs_(inputs), now_(memory_forecast(inputs)) {}

  std::vector<MemoryOption> run() {
    fewer_tokens_of_this_rank();
    kept_activations();
    stores();
    propose("no --save_in_background", snapshot, [](auto& changed) { changed.save_in_background = false; });
    if (inputs_.ulysses > 1 && 2 * inputs_.head_chunks <= inputs_.rank_heads)
      propose(cat("--head_chunks ", 2 * inputs_.head_chunks), attention,
              [](auto& changed) { changed.head_chunks *= 2; });
    smaller_tiles();
    return std::move(options_);
  }

 private:
  void propose(const std::string& option, MemoryCategory category,
               const std::function<void(ForecastInputs&)>& change,
               MemoryOptionKind kind = MemoryOptionKind::policy) {
    ForecastInputs changed = inputs_;
    change(changed);
    // The engine would choose anew where other activations leave.
    if (category == activations) changed.resident_layers = ResidentLayers{}.resident_layers;
    const MemoryForecast then = memory_forecast(changed);
    for (const MemorySpace space : {MemorySpace::device, MemorySpace::host}) {
      const auto bytes_of = [&](const MemoryForecast& forecast) {
        return (space == MemorySpace::host ? forecast.host : forecast.peak)[category];
      };
      const int64_t before = bytes_of(now_), after = bytes_of(then);
      if (before > after)
        options_.push_back({option, category,
                            static_cast<double>(before - after) / static_cast<double>(before), before, space,
                            kind});
    }
  }

  // Beside a GPU there is the host before the disk.
  void propose_offload(const char* option, MemoryCategory category, Offload OffloadOptions::*part) {
    const Offload now = inputs_.offload.*part;
    if (now == Offload::disk) return;
    const Offload next = now == Offload::none && !inputs_.device_is_host ? Offload::cpu : Offload::disk;
    propose(cat(option, " ", name_of(next)), category, [&](auto& changed) { changed.offload.*part = next; });
  }

  void fewer_tokens_of_this_rank() {
    if (const auto more = more_sequence_ranks(inputs_))
      for (const MemoryCategory category : kAllMemoryCategories)
        propose(more->option, category, [&](auto& changed) { changed = more->inputs; });
    const int64_t half = std::max<int64_t>(1, inputs_.tokens / 2);
    for (const MemoryCategory category : {activations, attention, communication})
      propose(
          cat("--max_seq_length ", half), category,
          [&](auto& changed) { changed = with_batch(changed, changed.batch, half); },
          MemoryOptionKind::smaller_task);
    if (inputs_.batch > 1 && !inputs_.update_in_backward)
      propose("a batch of 1 with --gradient_accumulation_steps", activations,
              [](auto& changed) { changed.batch = 1; });
  }

  void kept_activations() {
    const RecomputePlan& plan = inputs_.recompute;
    const bool keeps_little = plan.keeps_attention_at_most();
    if (plan.policy != Recompute::full) {
      const auto propose_policy = [&](Recompute policy, double keep_fraction) {
        const RecomputePlan then{policy, plan.checkpoint_every, keep_fraction, plan.layers};
        propose(recompute_flags(plan, then), activations, [&](auto& changed) { changed.recompute = then; });
      };
      propose_policy(Recompute::full, 1);
      if (!keeps_little) propose_policy(Recompute::keep_attention, 1);
      if (plan.keep_fraction > 0.5 && (plan.policy == Recompute::none || keeps_little))
        propose_policy(plan.policy, 0.5);
    }
    if (!keeps_little) return;
    for (const int64_t every : {2, 4})
      if (every > plan.checkpoint_every && every <= plan.layers)
        propose(cat("--checkpoint_every ", every), activations,
                [every](auto& changed) { changed.recompute.checkpoint_every = every; });
    propose_offload("--offload_activations", activations, &OffloadOptions::activations);
  }

  void stores() {
    propose_offload("--offload_optimizer", optimizer, &OffloadOptions::optimizer);
    if (inputs_.state_bytes == 4)
      propose("--optim_state_dtype bf16", optimizer, [](auto& changed) { changed.state_bytes = 2; });
    // On one rank, what they save on two.
    const std::string where = inputs_.ranks > 1 ? "" : " on 2 ranks or more";
    for (const auto& [stage, category] : {std::pair(1, optimizer), {2, gradients}, {3, parameters}})
      if (inputs_.zero < stage)
        propose(cat("--zero ", stage, where), category, [stage = stage](auto& changed) {
          changed.zero = stage;
          changed = with_ranks(changed, std::max(2, changed.ranks), changed.rank);
        });
    if (!inputs_.update_in_backward)
      propose(kUpdateInBackwardAdvice, gradients, [](auto& changed) { changed.update_in_backward = true; });
    if (inputs_.zero == 3) propose_offload("--offload_params", parameters, &OffloadOptions::parameters);
  }

  void smaller_tiles() {
    const int64_t rows = inputs_.batch * inputs_.shard_tokens;
    for (const bool head : {false, true}) {
      const int64_t tile = std::min(rows, head ? inputs_.logits_tile_tokens : inputs_.tile_tokens);
      if (tile < 2 * kLeastTile_tokens) continue;
      propose(cat(head ? "--logits_tile_tokens " : "--tile_tokens ", tile / 2), tiles,
              [head, tile](auto& changed) {
                (head ? changed.logits_tile_tokens : changed.tile_tokens) = tile / 2;
              });
    }
  }

  const ForecastInputs& inputs_;
  const MemoryForecast now_;
  std::vector<MemoryOption> options_;
};

}  // namespace

std::vector<MemoryOption> memory_options(const ForecastInputs& inputs) {
  return Proposals(inputs).run();
}

}  // namespace trireme
