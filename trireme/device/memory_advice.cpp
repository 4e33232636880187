#include "trireme/device/memory_advice.h"

#include <algorithm>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {

std::vector<MemoryOption> usual_memory_options() {
  using enum MemoryCategory;
  constexpr const char* kMoreRanks = "more ranks a sequence (--ulysses, and --ring beyond the heads)";
  const auto shorter = [](MemoryCategory category) {
    MemoryOption option{"a shorter --max_seq_length", category, 0.5};
    option.kind = MemoryOptionKind::smaller_task;
    return option;
  };
  return {
      {"--offload_activations disk", activations, 0.9},
      {"--recompute full", activations, 0.8},
      {kMoreRanks, activations, 0.5},
      shorter(activations),
      {"--checkpoint_every 2", activations, 0.4},
      {"--offload_optimizer disk", optimizer, 0.9},
      {"--zero 1 on more ranks", optimizer, 0.5},
      {"--optim_state_dtype bf16", optimizer, 0.5},
      {"--zero 2 on more ranks", gradients, 0.5},
      {kUpdateInBackwardAdvice, gradients, 0.8},
      {"--zero 3 --offload_params disk", parameters, 0.9},
      {"--zero 3 on more ranks", parameters, 0.5},
      {"--bf16", parameters, 0.5},
      {kMoreRanks, attention, 0.5},
      shorter(attention),
      {"a smaller --tile_tokens or --logits_tile_tokens", tiles, 0.5},
      {kMoreRanks, communication, 0.5},
      shorter(communication),
  };
}

std::string memory_advice(const MemoryBytes& held, const std::vector<MemoryOption>& options) {
  constexpr size_t kMostNamed = 5;
  struct Saving {
    const MemoryOption* option;
    int64_t bytes;
  };
  std::vector<Saving> savings;
  for (const MemoryOption& option : options) {
    const int64_t of_bytes = std::max(held[option.category], option.peak_bytes);
    const auto bytes = static_cast<int64_t>(option.saved_share * static_cast<double>(of_bytes));
    if (bytes > 0) savings.push_back({&option, bytes});
  }
  using enum MemoryOptionKind;
  std::stable_sort(savings.begin(), savings.end(), [](const Saving& a, const Saving& b) {
    return std::pair(a.option->kind, -a.bytes) < std::pair(b.option->kind, -b.bytes);
  });
  std::string text;
  std::vector<std::string> named;
  MemoryOptionKind last = policy;
  for (const auto& [option, bytes] : savings) {
    if (option->kind == policy && named.size() == kMostNamed) continue;
    if (bytes < savings.front().bytes / 100) continue;
    // An option may reduce several categories; only its largest saving is named.
    if (contains(named, option->option)) continue;
    if (option->kind == std::exchange(last, option->kind))
      text += named.empty() ? "" : ", ";
    else
      text += named.empty() ? "a smaller task: " : "; or a smaller task: ";
    text +=
        cat(option->option, " (saves about ", format_bytes(bytes), " of ", name_of(option->category), ")");
    named.push_back(option->option);
  }
  return text;
}

std::string categories_text(const MemoryBytes& bytes) {
  std::string text;
  for (const MemoryCategory each : kAllMemoryCategories)
    if (bytes[each] > 0) text += cat(text.empty() ? "" : ", ", name_of(each), " ", format_bytes(bytes[each]));
  return text;
}

std::string out_of_memory_message(const char* where, MemoryCategory category, int64_t asked_bytes,
                                  const MemoryBytes& held, const std::vector<MemoryOption>& options) {
  const std::string holds = categories_text(held);
  MemoryBytes wanted = held;
  wanted[category] += asked_bytes;
  const std::string advice = memory_advice(wanted, options);
  return cat("out of ", where, " memory: asked for ", format_bytes(asked_bytes), " (", asked_bytes,
             " bytes) more for ", name_of(category), "; this rank holds ",
             holds.empty() ? std::string("nothing that is counted") : holds, ". ",
             advice.empty() ? std::string("More ranks need less, and so does a shorter --max_seq_length")
                            : cat("What would help, the largest saving first: ", advice));
}

}  // namespace trireme
