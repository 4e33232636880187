#include "trireme/plan/memory_change.h"

#include <algorithm>

#include "trireme/attention/head_shares.h"
#include "trireme/base/error.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/tile_rules.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

using ChangeKind = MemoryChangeKind;

// Of the rank that is the fullest there; accumulation keeps the samples of a step.
void put_on_mesh(PlannedStep& step, int ranks, int ulysses, int ring) {
  const int64_t groups = step.data_parallel();
  const int rank = fullest_sequence_rank(step.inputs.model, {.ulysses = ulysses, .ring = ring});
  step.inputs = with_sequence_ranks(with_ranks(std::move(step.inputs), ranks, rank), ulysses, ring, rank);
  step.inputs.micro_batches *= groups / step.data_parallel();
}

// The rows of a table of changes, one kind after the other.
class ChangeTable {
 public:
  ChangeTable(const PlannedStep& step, const HardwareProfile& hardware, const ChangesAllowed& allowed)
      : step_(step), in_(step.inputs), hardware_(hardware), allowed_(allowed) {}

  std::vector<std::vector<MemoryChange>> run() {
    sequence_ranks();
    batch();
    zero();
    recompute();
    offload();
    head_chunks();
    tiles();
    optimizer();
    std::erase_if(kinds_, [](const auto& changes) { return changes.empty(); });
    return std::move(kinds_);
  }

 private:
  void begin_kind() { kinds_.emplace_back(); }
  void add(MemoryChange change) { kinds_.back().push_back(std::move(change)); }

  void sequence_ranks() {
    begin_kind();
    for (PlannedStep then = step_; then.data_parallel() > 1;) {
      const auto more = with_more_sequence_ranks(then);
      if (!more) return;
      then = *more;
      if (allowed_.allow_shares_of(then)) add_sequence_ranks(then);
    }
  }
  void add_sequence_ranks(const PlannedStep& then) {
    const int ulysses = then.inputs.ulysses, ring = then.inputs.ring;
    MemoryChange change;
    change.kind = ChangeKind::sequence_ranks;
    if (ulysses != in_.ulysses) change.flags = cat("--ulysses ", ulysses);
    if (ring != in_.ring) change.flags += cat(change.flags.empty() ? "" : " ", "--ring ", ring);
    if (ring == 1) change.deepspeed = {{"sequence_parallel_size", ulysses}};
    change.trainer = cat("ParallelismConfig(sp_size=", then.sequence_ranks(),
                         ring > 1 ? cat(", sp_ring=", ring) : std::string(), ")");
    change.note = cat("data-parallel ranks become sequence ranks: degree ", step_.sequence_ranks(), " -> ",
                      then.sequence_ranks());
    change.apply = [ulysses, ring](PlannedStep& step) {
      put_on_mesh(step, step.inputs.ranks, ulysses, ring);
    };
    add(std::move(change));
  }

  void batch() {
    begin_kind();
    for (int64_t divisor = 2; divisor <= in_.batch; ++divisor) {
      if (in_.batch % divisor != 0) continue;
      const int64_t batch = in_.batch / divisor;
      add({.kind = ChangeKind::batch,
           .flags = cat("--per_device_train_batch_size ", batch),
           .deepspeed = {{"train_micro_batch_size_per_gpu", batch}},
           .trainer = cat("per_device_train_batch_size=", batch),
           .apply = [divisor](PlannedStep& step) {
             step.inputs = with_batch(step.inputs, step.inputs.batch / divisor, step.inputs.tokens);
             step.inputs.micro_batches *= divisor;
           }});
    }
  }

  void zero() {
    begin_kind();
    // On one rank stage 3 alone does something: it lets parameters be offloaded.
    for (int stage = in_.ranks > 1 ? in_.zero + 1 : 3; stage <= 3; ++stage)
      if (stage > in_.zero)
        add({.kind = ChangeKind::zero,
             .flags = cat("--zero ", stage),
             .deepspeed = {{"zero_optimization.stage", stage}},
             .apply = [stage](PlannedStep& step) { step.inputs.zero = stage; }});
  }

  void recompute() {
    begin_kind();
    const int64_t layers = in_.recompute.layers;
    if (!in_.recompute.keeps_attention_at_most()) add(keep_attention_on(layers, in_.recompute));
    if (in_.recompute.policy != Recompute::full) add(keep_attention_on(0, in_.recompute));
    begin_kind();
    for (const int64_t every : {2, 4})
      if (every > in_.recompute.checkpoint_every && every <= layers)
        add({.kind = ChangeKind::checkpoint_every,
             .flags = cat("--checkpoint_every ", every),
             .apply = [every](PlannedStep& step) { step.inputs.recompute.checkpoint_every = every; }});
  }

  bool can_offload(Offload offload) const {
    return hardware_.can_offload_to(offload) && (offload != Offload::disk || allowed_.disk);
  }
  void offload_of(ChangeKind kind, Offload OffloadOptions::*what, const std::string& deepspeed_block) {
    begin_kind();
    const bool stepped_on_host = kind == ChangeKind::offload_optimizer;
    if (stepped_on_host && !host_can_step(in_, hardware_)) return;
    for (const Offload offload : {Offload::cpu, Offload::disk}) {
      if (offload <= in_.offload.*what || !can_offload(offload)) continue;
      MemoryChange change;
      change.kind = kind;
      change.flags = cat("--", name_of(kind), " ", name_of(offload));
      if (!deepspeed_block.empty()) {
        const bool disk = offload == Offload::disk;
        change.deepspeed = {{deepspeed_block + ".device", disk ? "nvme" : "cpu"}};
        if (disk) change.deepspeed.push_back({deepspeed_block + ".nvme_path", "DIR"});
      } else if (offload == Offload::cpu) {
        change.deepspeed = {{"activation_checkpointing.cpu_checkpointing", true}};
      }
      change.apply = [what, offload](PlannedStep& step) { step.inputs.offload.*what = offload; };
      add(std::move(change));
    }
  }
  void offload() {
    offload_of(ChangeKind::offload_activations, &OffloadOptions::activations, "");
    offload_of(ChangeKind::offload_optimizer, &OffloadOptions::optimizer,
               "zero_optimization.offload_optimizer");
    offload_of(ChangeKind::offload_params, &OffloadOptions::parameters, "zero_optimization.offload_param");
  }

  void head_chunks() {
    begin_kind();
    for (const int chunks : {2 * in_.head_chunks, 4 * in_.head_chunks})
      add({.kind = ChangeKind::head_chunks,
           .flags = cat("--head_chunks ", chunks),
           .apply = [chunks](PlannedStep& step) { step.inputs.head_chunks = chunks; }});
  }

  void tiles() {
    const int64_t rows = in_.batch * in_.shard_tokens;
    for (const auto& [kind, field] :
         {std::pair(ChangeKind::tile_tokens, &ForecastInputs::tile_tokens),
          std::pair(ChangeKind::logits_tile_tokens, &ForecastInputs::logits_tile_tokens)}) {
      begin_kind();
      const int64_t tile = std::min(rows, in_.*field);
      for (const int64_t smaller : {tile / 2, tile / 4})
        if (smaller >= kLeastTile_tokens)
          add({.kind = kind,
               .flags = cat("--", name_of(kind), " ", smaller),
               .apply = [field = field, smaller](PlannedStep& step) { step.inputs.*field = smaller; }});
    }
  }

  void optimizer() {
    begin_kind();
    if (allowed_.optim_state_dtype && in_.state_bytes == 4 && in_.moments > 0)
      add({.kind = ChangeKind::optim_state_dtype,
           .flags = "--optim_state_dtype bf16",
           .deepspeed = {{"bf16.bf16_optimizer_states", true}},
           .note = "moments in bf16, rounded stochastically",
           .apply = [](PlannedStep& step) { step.inputs.state_bytes = 2; }});
    begin_kind();
    if (allowed_.update_in_backward && !in_.update_in_backward)
      add({.kind = ChangeKind::update_in_backward,
           .flags = "--update_in_backward --max_grad_norm 0",
           .note = "gradients are not clipped any more",
           .apply = [](PlannedStep& step) { step.inputs.update_in_backward = true; }});
  }

  const PlannedStep& step_;
  const ForecastInputs& in_;
  const HardwareProfile& hardware_;
  const ChangesAllowed& allowed_;
  std::vector<std::vector<MemoryChange>> kinds_;
};

}  // namespace

std::vector<std::vector<MemoryChange>> possible_changes(const PlannedStep& step,
                                                        const HardwareProfile& hardware,
                                                        const ChangesAllowed& allowed) {
  return ChangeTable(step, hardware, allowed).run();
}

std::optional<PlannedStep> with_more_sequence_ranks(PlannedStep step) {
  const auto more = more_sequence_ranks(step.inputs);
  if (!more) return std::nullopt;
  put_on_mesh(step, more->inputs.ranks, more->inputs.ulysses, more->inputs.ring);
  return step;
}

MemoryChange keep_attention_on(int64_t keeping_layers, const RecomputePlan& before) {
  const RecomputePlan then =
      plan_keeping({.attention = keeping_layers}, before.checkpoint_every, before.layers);
  MemoryChange change;
  change.kind = ChangeKind::recompute;
  change.flags = recompute_flags(before, then);
  if (keeping_layers > 0)
    change.note = cat("attention's output is kept on ", keeping_layers, " of ", before.layers,
                      " layers; the Trainer's checkpointing keeps it on none: less memory, more time");
  change.trainer = "gradient_checkpointing=True";
  change.apply = [then](PlannedStep& step) {
    const int64_t every = step.inputs.recompute.checkpoint_every;
    step.inputs.recompute = then;
    step.inputs.recompute.checkpoint_every = every;
  };
  return change;
}

bool options_agree(const PlannedStep& step) {
  const ForecastInputs& inputs = step.inputs;
  if (!inputs.recompute.keeps_attention_at_most() &&
      (inputs.offload.activations != Offload::none || inputs.recompute.checkpoint_every > 1))
    return false;
  if (inputs.offload.parameters != Offload::none && inputs.zero != 3) return false;
  if (inputs.update_in_backward && inputs.micro_batches > 1) return false;
  return inputs.head_chunks == 1 ||
         (inputs.ulysses > 1 && inputs.head_chunks <= most_heads_of_rank(inputs.model.heads, inputs.ulysses));
}

}  // namespace trireme
