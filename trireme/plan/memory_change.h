// One change that makes a step smaller and trains the same: full attention, the same tokens a step. As what
// it does to the planned step, as Trireme's flags, and as DeepSpeed's keys and the Trainer's arguments where
// those have the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/plan/step_work.h"

namespace trireme {

// In the order in which a set applies them: others depend on the ranks and the policy.
enum class MemoryChangeKind : uint8_t {
  sequence_ranks,  // data-parallel ranks become sequence ranks
  batch,           // smaller micro-batches, more of them
  zero,
  recompute,
  checkpoint_every,
  offload_activations,
  offload_optimizer,
  offload_params,  // with ZeRO 3
  head_chunks,
  tile_tokens,
  logits_tile_tokens,
  optim_state_dtype,
  update_in_backward,
};
constexpr auto enum_names(MemoryChangeKind) {
  using enum MemoryChangeKind;
  return std::to_array<EnumName<MemoryChangeKind>>({{sequence_ranks, "sequence_ranks"},
                                                    {batch, "batch"},
                                                    {zero, "zero"},
                                                    {recompute, "recompute"},
                                                    {checkpoint_every, "checkpoint_every"},
                                                    {offload_activations, "offload_activations"},
                                                    {offload_optimizer, "offload_optimizer"},
                                                    {offload_params, "offload_params"},
                                                    {head_chunks, "head_chunks"},
                                                    {tile_tokens, "tile_tokens"},
                                                    {logits_tile_tokens, "logits_tile_tokens"},
                                                    {optim_state_dtype, "optim_state_dtype"},
                                                    {update_in_backward, "update_in_backward"}});
}

struct DeepSpeedSetting {
  std::string key;  // "zero_optimization.stage"
  Json value;
};

struct MemoryChange {
  MemoryChangeKind kind{};
  std::string flags;                             // "--zero 3"
  std::vector<DeepSpeedSetting> deepspeed = {};  // empty: it has nothing like it
  std::string trainer = {};                      // "gradient_checkpointing=True"; empty: nothing like it
  std::string note = {};                         // what else changes; empty: nothing
  std::function<void(PlannedStep&)> apply;
};

// What a caller rules out: a run in fp16 cannot step in backward, SGD and some optimizers have no bf16
// moments, a machine has no disk for it, --strict_divisible asks for equal shares of a sample.
struct ChangesAllowed {
  bool disk = true;
  bool optim_state_dtype = true;
  bool update_in_backward = true;
  bool strict_divisible = false;

  bool allow_shares_of(const PlannedStep& step) const {
    const ForecastInputs& inputs = step.inputs;
    return SampleLayout{inputs.tokens, inputs.ulysses, inputs.ring}.is_possible(strict_divisible);
  }
};

// What each kind could be changed to, the gentlest first; kinds without a choice are left out. Offload only
// over what the profile has rates of.
std::vector<std::vector<MemoryChange>> possible_changes(const PlannedStep& step,
                                                        const HardwareProfile& hardware,
                                                        const ChangesAllowed& allowed);

// With more_sequence_ranks, for the rank that is then the fullest, and as many samples a step.
std::optional<PlannedStep> with_more_sequence_ranks(PlannedStep step);

// keep_attention on the last `keeping_layers`, and the others full, in place of `before`.
MemoryChange keep_attention_on(int64_t keeping_layers, const RecomputePlan& before);

// Whether its options may stand together, by the rules of engine/check_options.cpp and
// train/check_options.cpp.
bool options_agree(const PlannedStep& step);

}  // namespace trireme
