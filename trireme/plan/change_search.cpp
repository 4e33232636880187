#include "trireme/plan/change_search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "trireme/forecast/choose_recompute.h"

namespace trireme {
namespace {

constexpr size_t kMostSets = 6;
constexpr int kMostTogether = 3;  // kinds whose every subset is tried

using Changes = std::vector<MemoryChange>;

// Changes that one would rather not make: a disk, other arithmetic of the update.
int64_t reluctant_changes(const MemoryChangeSet& set) {
  return std::ranges::count_if(set.changes, [](const MemoryChange& change) {
    return change.flags.ends_with(" disk") || change.kind == MemoryChangeKind::optim_state_dtype ||
           change.kind == MemoryChangeKind::update_in_backward;
  });
}

class ChangeSearch {
 public:
  ChangeSearch(const PlannedStep& step, const HardwareProfile& hardware, const TensorLimits& limits,
               const ChangesAllowed& allowed)
      : step_(step), hardware_(hardware), limits_(limits), kinds_(possible_changes(step, hardware, allowed)) {
    choose_strongest();
  }

  std::vector<MemoryChangeSet> sets() {
    const uint32_t all = (uint32_t{1} << kinds_.size()) - 1;
    int first = 0;  // kinds of the smallest sets
    for (int together = 1; together <= kMostTogether && (first == 0 || together <= first + 1); ++together)
      for (uint32_t kinds = 1; kinds <= all; ++kinds)
        if (std::popcount(kinds) == together && try_kinds(kinds) && first == 0) first = together;
    if (sets_.empty())
      for (const bool dear_first : {true, false}) less_of_all(dear_first);
    return ordered();
  }

  MemoryChangeSet nearest() const {
    MemoryChangeSet best = all_kinds(/*update_in_backward=*/false);
    if (auto other = all_kinds(/*update_in_backward=*/true);
        other.cost.bytes_too_many(limits_) < best.cost.bytes_too_many(limits_))
      best = std::move(other);
    drop_useless(best);
    gentler(best);
    set_time(best);
    return best;
  }

 private:
  // nullopt where options would not stand together. Without time.
  std::optional<MemoryChangeSet> with(const Changes& changes) const {
    MemoryChangeSet set{changes, step_, {}};
    for (const MemoryChange& change : changes) change.apply(set.step);
    if (!options_agree(set.step)) return std::nullopt;
    set.cost = memory_cost(set.step, limits_);
    return set;
  }
  void set_time(MemoryChangeSet& set) const {
    const StepTime time = step_time(set.step, hardware_);
    set.cost.seconds = time.seconds;
    set.cost.tokens_per_second = time.tokens_per_second;
  }

  // Of each kind the choice that comes nearest by itself; of equal ones, and of those that need another kind,
  // the last.
  void choose_strongest() {
    for (const Changes& choices : kinds_) {
      size_t strongest = 0;
      int64_t least = std::numeric_limits<int64_t>::max();
      for (size_t i = 0; i < choices.size(); ++i) {
        const auto set = with({choices[i]});
        const int64_t bytes = set ? set->cost.bytes_too_many(limits_) : std::numeric_limits<int64_t>::max();
        if (bytes <= least) std::tie(strongest, least) = std::pair(i, bytes);
      }
      strongest_.push_back(strongest);
    }
  }

  template <typename Body>
  static void for_kinds(uint32_t kinds, const Body& body) {
    for (; kinds != 0; kinds &= kinds - 1) body(static_cast<size_t>(std::countr_zero(kinds)));
  }

  bool try_kinds(uint32_t kinds) {
    for (const uint32_t fitting : fitting_)
      if ((kinds & fitting) == fitting) return false;
    Changes strongest;
    for_kinds(kinds, [&](size_t kind) { strongest.push_back(kinds_[kind][strongest_[kind]]); });
    const auto set = with(strongest);
    if (set && !set->cost.fits(limits_)) return false;
    auto gentlest = gentlest_of(kinds);
    if (!gentlest) return false;
    fitting_.push_back(kinds);
    take(std::move(*gentlest));
    return true;
  }

  // Every combination of the kinds' choices.
  std::optional<MemoryChangeSet> gentlest_of(uint32_t kinds) const {
    std::vector<Changes> combinations(1);
    for_kinds(kinds, [&](size_t kind) {
      std::vector<Changes> longer;
      for (const Changes& shorter : combinations)
        for (const MemoryChange& choice : kinds_[kind]) {
          longer.push_back(shorter);
          longer.back().push_back(choice);
        }
      combinations = std::move(longer);
    });
    std::optional<MemoryChangeSet> best;
    for (const Changes& changes : combinations) {
      auto set = with(changes);
      if (!set || !set->cost.fits(limits_)) continue;
      set_time(*set);
      if (!best || std::pair(reluctant_changes(*set), set->cost.seconds) <
                       std::pair(reluctant_changes(*best), best->cost.seconds))
        best = std::move(set);
    }
    return best;
  }

  // As many kinds as may stand together, each by its strongest choice that others allow. Updates in backward
  // rule out what needs accumulation, so they are asked first or not at all.
  MemoryChangeSet all_kinds(bool update_in_backward) const {
    MemoryChangeSet all{{}, step_, {}};
    const auto add = [&](size_t kind) {
      Changes choices{kinds_[kind][strongest_[kind]]};
      choices.insert(choices.end(), kinds_[kind].rbegin(), kinds_[kind].rend());
      for (const MemoryChange& choice : choices) {
        Changes changes = all.changes;
        changes.push_back(choice);
        std::ranges::stable_sort(changes, {}, &MemoryChange::kind);
        if (auto more = with(changes)) {
          all = std::move(*more);
          return;
        }
      }
    };
    const auto last = MemoryChangeKind::update_in_backward;
    for (const bool first : {true, false})
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const bool is_last = kinds_[kind].front().kind == last;
        if (is_last ? first && update_in_backward : !first) add(kind);
      }
    all.cost = memory_cost(all.step, limits_);
    return all;
  }

  // Leaves out what is not needed, one change after the other: the one that costs most first, or the last
  // kind.
  void less_of_all(bool dear_first) {
    for (const bool update_in_backward : {false, true}) {
      std::optional<MemoryChangeSet> set = all_kinds(update_in_backward);
      if (!set->cost.fits(limits_)) continue;
      for (bool dropped = true; dropped;) {
        dropped = false;
        std::vector<std::pair<double, size_t>> order;
        for (size_t i = 0; i < set->changes.size(); ++i)
          order.emplace_back(dear_first ? seconds_without(set->changes, i) : -static_cast<double>(i), i);
        std::ranges::sort(order);
        for (const auto& [cost, i] : order) {
          auto less = with(without(set->changes, i));
          if (!less || !less->cost.fits(limits_)) continue;
          set = std::move(less);
          dropped = true;
          break;
        }
      }
      gentler(*set);
      take(std::move(*set));
    }
  }
  static Changes without(Changes changes, size_t index) {
    changes.erase(changes.begin() + static_cast<std::ptrdiff_t>(index));
    return changes;
  }
  double seconds_without(const Changes& changes, size_t index) const {
    const auto set = with(without(changes, index));
    return set ? step_time(set->step, hardware_).seconds : std::numeric_limits<double>::max();
  }
  // Of each kind the first choice that does as well.
  void gentler(MemoryChangeSet& set) const {
    for (size_t i = 0; i < set.changes.size(); ++i) {
      const auto choices = std::ranges::find(kinds_, set.changes[i].kind,
                                             [](const Changes& kind) { return kind.front().kind; });
      for (const MemoryChange& choice : *choices) {
        Changes changes = set.changes;
        changes[i] = choice;
        if (auto other = with(changes);
            other && other->cost.bytes_too_many(limits_) <= set.cost.bytes_too_many(limits_)) {
          set = std::move(*other);
          break;
        }
      }
    }
  }

  // Where every layer would be computed again, attention's output on as many as fit is less time.
  void keep_attention(MemoryChangeSet& set) const {
    const auto full = std::ranges::find(set.changes, MemoryChangeKind::recompute, &MemoryChange::kind);
    const RecomputePlan& plan = set.step.inputs.recompute;
    if (full == set.changes.end() || plan.policy != Recompute::full) return;
    std::vector<RecomputePlan> keeping;  // attention's output on none, one, two ... of the layers
    for (int64_t layers = 0; layers <= plan.layers; ++layers)
      keeping.push_back(plan_keeping({.attention = layers}, plan.checkpoint_every, plan.layers));
    const RecomputeChoice choice = choose_recompute(set.step.inputs, keeping, limits_.device_bytes);
    if (choice.rung == 0) return;
    Changes changes = set.changes;
    changes[static_cast<size_t>(full - set.changes.begin())] =
        keep_attention_on(choice.rung, step_.inputs.recompute);
    auto kept = with(changes);
    if (!kept || !kept->cost.fits(limits_)) return;
    set_time(*kept);
    if (kept->cost.seconds < set.cost.seconds) set = std::move(*kept);
  }

  // Choices of less strength may leave one of the others without need.
  void drop_useless(MemoryChangeSet& set) const {
    for (size_t i = set.changes.size(); i-- > 0;)
      if (auto less = with(without(set.changes, i));
          less && less->cost.bytes_too_many(limits_) <= set.cost.bytes_too_many(limits_))
        set = std::move(*less);
  }

  void take(MemoryChangeSet set) {
    drop_useless(set);
    set_time(set);
    keep_attention(set);
    for (const MemoryChangeSet& known : sets_)
      if (known.flags(step_) == set.flags(step_)) return;
    sets_.push_back(std::move(set));
  }

  // The fastest of all is among them, wherever it stands.
  std::vector<MemoryChangeSet> ordered() {
    std::ranges::stable_sort(sets_, {}, [](const MemoryChangeSet& set) {
      return std::tuple(set.changes.size(), reluctant_changes(set), set.cost.seconds);
    });
    if (sets_.size() <= kMostSets) return std::move(sets_);
    const auto fastest =
        std::ranges::min_element(sets_, {}, [](const MemoryChangeSet& set) { return set.cost.seconds; });
    const auto last = sets_.begin() + kMostSets - 1;
    if (fastest > last) std::iter_swap(fastest, last);
    sets_.erase(last + 1, sets_.end());
    return std::move(sets_);
  }

  const PlannedStep& step_;
  const HardwareProfile& hardware_;
  const TensorLimits& limits_;
  const std::vector<Changes> kinds_;
  std::vector<size_t> strongest_;  // choice of each kind
  std::vector<uint32_t> fitting_;  // kinds of the sets, as bits
  std::vector<MemoryChangeSet> sets_;
};

}  // namespace

std::vector<MemoryChangeSet> fitting_sets(const PlannedStep& step, const HardwareProfile& hardware,
                                          const TensorLimits& limits, const ChangesAllowed& allowed) {
  return ChangeSearch(step, hardware, limits, allowed).sets();
}

MemoryChangeSet nearest_set(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const ChangesAllowed& allowed) {
  return ChangeSearch(step, hardware, limits, allowed).nearest();
}

}  // namespace trireme
