// What the memory formulas are held against: models, runs of them, and the bytes that were counted.
#pragma once

#include <functional>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/device/memory_account.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/model/model_config.h"

namespace trireme::testing {

// Of every case that does not choose its own.
constexpr int64_t kTile_tokens = 192, kLogitsTile_tokens = 256;
// Scalars, norms' partial sums and the like are not in the formulas.
constexpr int64_t kCrumbs_bytes = 48 * 1024;

Json grouped_model();     // grouped heads
Json tied_model();        // tied, with norms of q and k and one head a group
Json uneven_model();      // biases, and heads that 2 and 4 ranks do not share evenly
Json straddling_model();  // the second of two chunks of 12 query heads over 2 ranks uses two of the 3
                          // key/value heads
Json narrow_model();      // tiles have many more tokens than it has values
Json encoder_model();
Json gemma2_model();
Json gemma3_model();
Json gemma4_model();                 // four layers: one that slides, one that does not, and again
Json qwen3_5_model();                // four layers: one with a DeltaNet, one with attention, and again
Json gemma4_e2b_wide_table_model();  // a table of what layers are told that is larger than all else
Json mixture_model();

struct MemoryCase {
  const char* name;
  Json (*config)();
  int ranks;
  int ulysses;
  int64_t batch, tokens;
  std::function<void(EngineOptions&)> change = [](EngineOptions&) {};
  ModelFamilies families = model_families();
};

// Every model, policy and way to share a sequence that has a formula.
std::vector<MemoryCase> memory_cases();

struct MeasuredMemory {
  MemoryState state;
  MemoryForecast forecast;
  ForecastInputs inputs;
};

// Runs `steps` steps over threads as ranks, each with `threads`; of every rank.
std::vector<MeasuredMemory> measure_memory(const MemoryCase& test, int threads, uint64_t steps = 1);

// Expects `measured` within `share` of `formula`, crumbs apart.
void expect_within(double share, const char* what, int64_t measured, int64_t formula);

}  // namespace trireme::testing
