// Tensor and pipeline parallelism: where people use them, and what is here instead.
//
//   tensor     splits each product over the GPUs of a machine (arXiv 1909.08053): weights, gradients and
//              optimizer fall with its degree, and each layer exchanges activations four times a step
//   pipeline   gives each machine some of the layers (arXiv 1811.06965): few exchanges, and idle time that
//              many micro-batches hide
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/planned.h"

namespace trireme {

// Why they, which are not built, might be asked for here; empty: no reason.
std::vector<std::string> advice_on_other_axes(const PlanRequest& request, const Planned& best);

}  // namespace trireme
