// The search for sets of changes after which a step fits.
//
//   kinds of change (memory_change.h), each by its strongest choice
//     -> every subset of one, two and three kinds by the forecast; a subset that holds a fitting one is left
//        out, so that no set has a change too many
//     -> of a fitting subset the gentlest choices: no disk if it can be, then the least time of a step
//     -> in order of their number; of as many, those without a disk and with the arithmetic of the update
//        as it is (fp32 moments, clipping) first, then by time
//   if no three suffice, all kinds together, less those that are not needed
#pragma once

#include "trireme/plan/memory_change_sets.h"

namespace trireme {

// At most six; none where nothing helps. The step must not fit.
std::vector<MemoryChangeSet> fitting_sets(const PlannedStep& step, const HardwareProfile& hardware,
                                          const TensorLimits& limits, const ChangesAllowed& allowed);

// Where nothing helps: as many changes as bring it nearer.
MemoryChangeSet nearest_set(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const ChangesAllowed& allowed);

}  // namespace trireme
