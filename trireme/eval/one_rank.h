// P ranks beside one, on a user's own model and tokens, without a reference file: the loss, every gradient
// and the gradient norm of a step in fp32 (architecture.md, section 3).
//
//   all ranks      the run's engine on their parts of the step -> gradients, whole, to rank 0's host memory
//   rank 0 alone   an engine of one rank, without ZeRO, offload or what backward need not make again,
//                  on all parts of the step -> compared
#pragma once

#include <filesystem>
#include <functional>

#include "trireme/comm/world.h"
#include "trireme/data/token_batch.h"
#include "trireme/engine/engine_options.h"
#include "trireme/eval/verify_reference.h"
#include "trireme/model/model_family.h"

namespace trireme {

// Of a step's samples those of data-parallel group `dp_index`, and of each the tokens of rank `sp_rank` of
// ulysses x ring.
struct StepPart {
  int dp_index = 0;
  int ulysses = 1;
  int ring = 1;
  int sp_rank = 0;
};
using PartOfStep = std::function<StepBatches(const StepPart&)>;

// "loss", "gradient norm" and "grad.NAME", worst first; one rank's numbers are the reference. Collective;
// every rank has the same result. Throws what an engine throws, out of memory on rank 0 on all ranks.
VerifyResult compare_with_one_rank(World& world, const std::filesystem::path& model_dir,
                                   const EngineOptions& options, const PartOfStep& part_of_step,
                                   double tolerance, const ModelFamilies& families = model_families());

}  // namespace trireme
