#include "trireme/plan/runners_up.h"

#include <algorithm>

#include "trireme/base/contains.h"
#include "trireme/base/sizes.h"
#include "trireme/plan/planned_inputs.h"
#include "trireme/plan/search.h"
#include "trireme/plan/step_causes.h"

namespace trireme {
namespace {

constexpr double kNoticed = 0.0005;  // share of a step's time that is told

// What grew most from `before` to `after`.
template <typename Entries>
std::string grown_most(const Entries& before, const Entries& after) {
  std::string most;
  double growth = 0;
  for (const auto& [name, amount] : after) {
    double grown = amount;
    for (const auto& [other, was] : before)
      if (other == name) grown -= was;
    if (grown > growth) {
      most = name;
      growth = grown;
    }
  }
  return most.empty() ? "all together" : most;
}

using Amounts = std::vector<std::pair<std::string, double>>;

Amounts amounts_of(const MemoryBytes& bytes) {
  Amounts all;
  for (const MemoryCategory category : kAllMemoryCategories)
    all.emplace_back(name_of(category), static_cast<double>(bytes[category]));
  return all;
}

Amounts seconds_a_token(const Planned& planned) {
  Amounts all;
  for (const CauseSeconds& each : seconds_by_cause(planned.time))
    all.emplace_back(each.cause, each.seconds / planned.step.tokens());
  return all;
}

std::string percent(double share) {
  return format_percent(share, share < 0.0995 ? 1 : 0);
}

PinnedOptions pinned_as(const Configuration& c) {
  PinnedOptions pinned;
  pinned.ulysses = c.ulysses;
  pinned.ring = c.ring;
  pinned.zero = c.zero;
  pinned.offload_parameters = c.offload.parameters;
  pinned.offload_optimizer = c.offload.optimizer;
  pinned.offload_activations = c.offload.activations;
  pinned.recompute = c.recompute.policy;
  if (c.recompute.policy != Recompute::full) pinned.keep_fraction = c.recompute.keep_fraction;
  if (c.recompute.policy == Recompute::keep_attention) {
    pinned.keep_qkv_fraction = c.recompute.keep_qkv_fraction;
    pinned.keep_mlp_fraction = c.recompute.keep_mlp_fraction;
  }
  pinned.checkpoint_every = c.recompute.checkpoint_every;
  pinned.head_chunks = c.head_chunks;
  pinned.tile_tokens = c.tile_tokens;
  pinned.logits_tile_tokens = c.logits_tile_tokens;
  pinned.batch = c.batch;
  pinned.accumulation = c.accumulation;
  return pinned;
}

// In speed, or in a memory.
bool is_better_in_something(const Planned& other, const Planned& best) {
  return other.seconds_per_token() / best.seconds_per_token() - 1 < -kNoticed ||
         other.memory.device_bytes < best.memory.device_bytes ||
         other.memory.host_bytes < best.memory.host_bytes;
}

// Those options that the user did not pin, one by one with other values than the best's.
class Alternatives {
 public:
  Alternatives(const PlanRequest& request, const Planned& best)
      : request_(request), best_(best), c_(best.configuration) {}

  std::vector<RunnerUp> run() {
    add_meshes();
    const PinnedOptions& user = request_.pinned;
    for (const int zero : {0, 1, 2, 3})
      with(user.zero, zero != c_.zero && (zero == 3 || c_.offload.parameters == Offload::none),
           [&](PinnedOptions& pinned) { pinned.zero = zero; });
    for (const Offload offload : {Offload::none, Offload::cpu}) {
      with(user.offload_parameters, offload != c_.offload.parameters && c_.zero == 3,
           [&](PinnedOptions& pinned) { pinned.offload_parameters = offload; });
      with(user.offload_optimizer, offload != c_.offload.optimizer,
           [&](PinnedOptions& pinned) { pinned.offload_optimizer = offload; });
      with(user.offload_activations, offload != c_.offload.activations,
           [&](PinnedOptions& pinned) { pinned.offload_activations = offload; });
    }
    const RecomputePlan& kept = c_.recompute;
    for (const Recompute policy : {Recompute::none, Recompute::keep_attention, Recompute::full})
      with(user.recompute,
           (policy != Recompute::none || user.checkpoint_every.value_or(1) == 1) &&
               (policy != kept.policy || kept.layers_keeping(KeptPart::attention) < kept.layers ||
                kept.keeps_qkv_or_mlp()),
           [&](PinnedOptions& pinned) {
             pinned.recompute = policy;
             pinned.keep_fraction = policy == Recompute::full ? std::nullopt : std::optional(1.0);
             pinned.keep_qkv_fraction = pinned.keep_mlp_fraction = std::nullopt;
             if (policy == Recompute::none) pinned.checkpoint_every = 1;
           });
    for (const int64_t every : {1, 2, 4})
      with(user.checkpoint_every,
           every != kept.checkpoint_every && every <= kept.layers && kept.keeps_attention_at_most(),
           [&](PinnedOptions& pinned) { pinned.checkpoint_every = every; });
    for (const int chunks : {1, 2, 4})
      with(user.head_chunks, chunks != c_.head_chunks,
           [&](PinnedOptions& pinned) { pinned.head_chunks = chunks; });
    return std::move(all_);
  }

 private:
  bool is_on_host(const PinnedOptions& pinned) const {
    return pinned.offload_parameters != Offload::none || pinned.offload_optimizer != Offload::none ||
           pinned.offload_activations != Offload::none;
  }

  template <typename T, typename Change>
  void with(const std::optional<T>& user_pinned, bool differs, const Change& change) {
    if (user_pinned || !differs) return;
    PlanRequest request = request_;
    request.pinned = pinned_as(c_);
    change(request.pinned);
    if (is_on_host(request.pinned) && !request.hardware.can_offload_to(Offload::cpu) &&
        (request.hardware.is_gpu || !is_on_host(pinned_as(c_))))
      return;
    if (request.pinned.offload_optimizer != Offload::none &&
        !host_can_step(best_.step.inputs, request.hardware))
      return;
    for (const Candidate& candidate : list_candidates(request, c_.ranks(), best_.tokens())) {
      const Planned other = make_planned(request, candidate.keeping(candidate.most_keeping), best_.tokens());
      if (!other.memory.fits() || is_better_in_something(other, best_)) add(other);
    }
  }

  void add_meshes() {
    const int sp = c_.sequence_ranks();
    const std::pair<int, int> meshes[] = {{c_.ulysses * 2, c_.ring},
                                          {c_.ulysses, c_.ring * 2},
                                          {c_.ulysses / 2, c_.ring},
                                          {c_.ulysses, c_.ring / 2},
                                          {c_.ulysses / 2, c_.ring * 2},
                                          {c_.ulysses * 2, c_.ring / 2},
                                          {sp, 1},
                                          {1, sp}};
    std::vector<std::pair<int, int>> known_meshes{{c_.ulysses, c_.ring}};
    for (const auto& mesh : meshes) {
      const auto [ulysses, ring] = mesh;
      if (ulysses < 1 || ring < 1 || contains(known_meshes, mesh)) continue;
      known_meshes.push_back(mesh);
      const PinnedOptions& user = request_.pinned;
      if ((user.ulysses && *user.ulysses != ulysses) || (user.ring && *user.ring != ring)) continue;
      PlanRequest request = request_;
      request.pinned.ulysses = ulysses;
      request.pinned.ring = ring;
      if (list_candidates(request, c_.ranks(), best_.tokens()).empty()) continue;
      Search search(request);
      const auto fastest = search.fastest(c_.ranks(), best_.tokens());
      add(fastest ? *fastest : search.nearest(c_.ranks(), best_.tokens()));
    }
  }

  void add(const Planned& other) {
    if (other.configuration == c_) return;
    for (const RunnerUp& known : all_)
      if (known.planned.configuration == other.configuration) return;
    all_.push_back(compare_with(best_, other, request_.hardware));
  }

  const PlanRequest& request_;
  const Planned& best_;
  const Configuration& c_;
  std::vector<RunnerUp> all_;
};

}  // namespace

std::string changed_options_of(const Planned& best, const Planned& other) {
  const Configuration &a = best.configuration, &b = other.configuration;
  std::string text;
  const auto tell = [&](bool differs, const auto&... words) {
    if (differs) text += cat(text.empty() ? "" : " ", words...);
  };
  const bool mesh = a.ulysses != b.ulysses || a.ring != b.ring;
  tell(mesh, "--ulysses ", b.ulysses, " --ring ", b.ring);
  tell(a.zero != b.zero, "--zero ", b.zero);
  tell(a.offload.parameters != b.offload.parameters, "--offload_params ", name_of(b.offload.parameters));
  tell(a.offload.optimizer != b.offload.optimizer, "--offload_optimizer ", name_of(b.offload.optimizer));
  tell(a.offload.activations != b.offload.activations, "--offload_activations ",
       name_of(b.offload.activations));
  RecomputePlan kept_of_best = a.recompute, kept = b.recompute;
  kept_of_best.checkpoint_every = kept.checkpoint_every = 1;  // told by itself
  tell(kept != kept_of_best, recompute_flags(kept_of_best, kept));
  const int64_t every = b.recompute.checkpoint_every;
  tell(a.recompute.checkpoint_every != every, "--checkpoint_every ", every);
  tell(a.head_chunks != b.head_chunks, "--head_chunks ", b.head_chunks);
  tell(a.tile_tokens != b.tile_tokens, "--tile_tokens ", b.tile_tokens);
  tell(a.logits_tile_tokens != b.logits_tile_tokens, "--logits_tile_tokens ", b.logits_tile_tokens);
  tell(!mesh && a.batch != b.batch, "--per_device_train_batch_size ", b.batch);
  return text;
}

RunnerUp compare_with(const Planned& best, const Planned& other, const HardwareProfile& hardware) {
  RunnerUp runner{other, changed_options_of(best, other), "",
                  other.seconds_per_token() / best.seconds_per_token() - 1};
  const PlannedMemory& memory = other.memory;
  if (!memory.fits()) {
    const bool on_device = memory.device_over_bytes() > 0;
    const int64_t over = on_device ? memory.device_over_bytes() : memory.host_over_bytes();
    const MemoryBytes &now = on_device ? best.memory.forecast.peak : best.memory.forecast.host,
                      &then = on_device ? memory.forecast.peak : memory.forecast.host;
    runner.reason =
        cat(format_bytes(over), " over ",
            on_device ? cat("on each ", hardware.device_noun()) : std::string("in a machine's host memory"),
            ": ", grown_most(amounts_of(now), amounts_of(then)));
    if (runner.slower < -kNoticed)
      runner.reason += cat(" (it would be ", percent(-runner.slower), " faster)");
    return runner;
  }
  if (runner.slower < kNoticed) {
    const int64_t more = memory.device_bytes - best.memory.device_bytes;
    runner.reason = more >= 0 ? cat("as fast, and ", format_bytes(more), " more on each device")
                              : cat("as fast, and ", format_bytes(-more), " less on each device");
    return runner;
  }
  runner.reason =
      cat(percent(runner.slower), " slower: ", grown_most(seconds_a_token(best), seconds_a_token(other)));
  return runner;
}

std::vector<RunnerUp> list_runners_up(const PlanRequest& request, const Planned& best) {
  std::vector<RunnerUp> all = Alternatives(request, best).run();
  std::ranges::stable_sort(all, [](const RunnerUp& a, const RunnerUp& b) {
    const bool a_fits = a.planned.memory.fits(), b_fits = b.planned.memory.fits();
    if (a_fits != b_fits) return a_fits;
    if (a_fits) return a.slower < b.slower;
    const auto over = [](const PlannedMemory& memory) {
      return std::max(memory.device_over_bytes(), memory.host_over_bytes());
    };
    return over(a.planned.memory) < over(b.planned.memory);
  });
  return all;
}

}  // namespace trireme
