// Mean loss by position in the context, over a held-out set: it shows whether a model uses a longer context.
// Split over ranks like training: each rank scores its slice of tokens, and ranks exchange only sums.
//
//   loss_Bs of Engine::evaluate -> per bucket [begin, end): sum of losses, number of targets -> sum over
//   ranks
//
// Where documents are packed, a position counts from its document's begin in the sample, so it is the length
// of the context. The loss at position t is that of the token that t predicts from t + 1 tokens (for an
// encoder: of the masked token at t). Positions without a target (-100) are skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/engine/engine.h"

namespace trireme {

struct PositionBucket {
  int64_t begin = 0;  // positions [begin, end)
  int64_t end = 0;
  int64_t target_tokens = 0;
  double loss_sum = 0;  // natural log

  double mean() const { return target_tokens > 0 ? loss_sum / static_cast<double>(target_tokens) : 0; }
};

struct PositionLoss {
  int64_t sequence_tokens = 0;  // S
  int64_t samples = 0;
  std::vector<PositionBucket> buckets;

  int64_t target_tokens() const;
  double loss() const;  // mean over all targets
  Json to_json() const;
  std::string table() const;
};

// Bucket edges 0, ..., S: S is halved down to about 64 tokens, the scale on which gains from context show.
std::vector<int64_t> power_of_two_edges(int64_t sequence_tokens);
// `buckets` equal buckets, 1 or more (fewer where S is smaller).
std::vector<int64_t> equal_edges(int64_t sequence_tokens, int64_t buckets);

// Evaluates the whole set. Collective; every rank gets the result. Throws DataError when no target is valid.
// `give_up` is asked before each sample, and answers alike on all ranks: after a true there is no result.
std::optional<PositionLoss> evaluate_loss_by_position(Engine& engine, EvaluationLoader& loader,
                                                      const std::vector<int64_t>& edges,
                                                      const std::function<bool()>& give_up);
PositionLoss evaluate_loss_by_position(Engine& engine, EvaluationLoader& loader,
                                       const std::vector<int64_t>& edges);

}  // namespace trireme
