// The training loop: stages of sequence length, steps, evaluation, checkpoints, metrics.
//
//   per stage   an engine, if not that of the stage before; loader of its length -> StepBatches
//               -> Engine::train_step(batches, schedule(step)) -> metrics
//   per step    all ranks agree whether to stop; a checkpoint every save_steps, or save_minutes
//
// A run that stops and resumes at the same topology gives the same bits as one that never stopped. Its state
// is the engine's, the loader's two numbers and the step; steps pass on nothing else.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <ostream>

#include "trireme/comm/world.h"
#include "trireme/train/metrics.h"
#include "trireme/train/train_options.h"

namespace trireme {

struct TrainHooks {
  std::ostream* out = nullptr;                        // where rank 0 reports; null: silent
  std::function<int()> terminal_columns;              // of `out`'s terminal; null or 0: no live line
  const std::atomic<bool>* stop_requested = nullptr;  // set on any rank: finish the step, save, return
  std::function<void()> on_training_begins;           // on every rank, once, when all is prepared
  std::function<void(const StepRecord&)> on_step;     // on every rank, after each step
  std::function<double()> clock;                      // seconds, for --save_minutes; null: now_seconds
};

struct TrainOutcome {
  int64_t steps = 0;                 // finished, since the run began
  int64_t total_steps = 0;           // asked for
  bool stopped = false;              // by request, before the last step
  double loss = 0;                   // of the last step
  std::filesystem::path checkpoint;  // the last one saved
};

// Collective over the world. Throws ConfigError, DataError (broken or empty data; a full disk; a loss that is
// not finite, with the step and the last good checkpoint) and CommError.
TrainOutcome train(World& world, const TrainOptions& options, const TrainHooks& hooks = {});

}  // namespace trireme
