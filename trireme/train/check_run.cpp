#include "trireme/train/check_run.h"

#include <algorithm>

#include "trireme/comm/mesh.h"
#include "trireme/engine/check_options.h"
#include "trireme/train/check_options.h"
#include "trireme/train/compare_ranks.h"

namespace trireme {

ModelConfig check_run(TrainOptions& options, const World& world, Agreement& agreement) {
  compare_ranks(options, world.rank(), agreement);
  check_options(options);
  check_degrees(options.engine.ulysses, options.engine.ring, world.size());
  ModelConfig config = read_model_config(options.model_dir);
  check_dropout(options, config);
  options.samples = resolve_samples(options.samples, config, options.model_dir);
  check_engine_options(options.engine);
  check_heads(options.engine, config);
  check_packing(options.samples.packing, options.engine);
  return config;
}

std::vector<ContextStage> stages_before_data(const TrainOptions& options) {
  const StageDefaults defaults = stage_defaults(options);
  return options.context_stages.empty() ? single_stage(options.samples.max_seq_length, kMostSteps, defaults)
                                        : parse_context_stages(options.context_stages, defaults);
}

int64_t longest_stage_tokens(const std::vector<ContextStage>& stages) {
  return std::ranges::max(stages, {}, &ContextStage::sequence_tokens).sequence_tokens;
}

}  // namespace trireme
