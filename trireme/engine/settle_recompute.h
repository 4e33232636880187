// What --recompute auto comes to in a run: every rank asks what its device has left and how many layers fit there
// (choose_recompute.h); the least of the ranks is what all do.
#pragma once

#include <optional>
#include <string>

#include "trireme/comm/world.h"
#include "trireme/engine/choose_recompute.h"
#include "trireme/engine/engine_options.h"

namespace trireme {

// Writes `recompute` and `keep_fraction` of `options` where they were left open (Recompute::automatic). Training with a
// planned batch: the choice, the same on every rank, with the numbers of the rank that has the least room. Otherwise
// none: what is not asked; an evaluation, which keeps nothing for backward; a batch that is unknown, or too short for
// its ranks: keep_attention. `shape` is this rank's, without a batch; `all` has every rank of the run. Collective; before
// a rank allocates what the formulas count.
std::optional<RecomputeChoice> settle_recompute(const World& world, Group& all, const MemoryShape& shape,
                                                EngineOptions& options);

// Empty where the choice fits; otherwise what is expected and the options that would help, for a person. `shape` is the
// engine's with the planned batch.
std::string shortage_warning(const RecomputeChoice& choice, const MemoryShape& shape);

}  // namespace trireme
