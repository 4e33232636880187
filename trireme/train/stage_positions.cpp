// Checks whether a model's positions reach over the stages of a run (context_stages.h).
#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/model/embedding.h"
#include "trireme/train/context_stages.h"

namespace trireme {

int64_t position_reach(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.kind == RopeKind::standard) return config.max_position_embeddings;
  const int64_t original = rope.original_max_position_embeddings > 0 ? rope.original_max_position_embeddings
                                                                     : config.max_position_embeddings;
  constexpr double kMost = 9e15;  // a whole number that a double holds, for any factor
  const double stretched = std::min(kMost, rope.factor * static_cast<double>(original));
  return std::max(config.max_position_embeddings, static_cast<int64_t>(std::llround(stretched)));
}

void check_positions(const std::vector<ContextStage>& stages, const ModelConfig& config,
                     int64_t longest_document_tokens) {
  const int64_t reach = position_reach(config);
  for (const ContextStage& stage : stages) {
    const int64_t tokens = std::min(stage.sequence_tokens, longest_document_tokens);
    check_positions(config, tokens);
    if (tokens > reach)
      throw ConfigError(
          cat("a sequence of ", format_count(tokens), " tokens is longer than the ", format_count(reach),
              " positions of the model: raise max_position_embeddings (now ", config.max_position_embeddings,
              ") in its config.json, with a larger rope_theta or a rope scaling such as yarn, or train on "
              "shorter sequences"));
  }
}

}  // namespace trireme
