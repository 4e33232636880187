// The checks of `trireme validate`: what was measured -> pass or fail, and why. Arithmetic only; what runs
// the steps is validate.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"
#include "trireme/eval/verify_reference.h"
#include "trireme/measure/likely_cause.h"
#include "trireme/measure/step_rate.h"
#include "trireme/train/dry_run.h"

namespace trireme {

enum class Verdict { pass, fail, not_done };
constexpr auto enum_names(Verdict) {
  using enum Verdict;
  return std::to_array<EnumName<Verdict>>({{pass, "pass"}, {fail, "FAIL"}, {not_done, "not done"}});
}

struct Check {
  std::string name;
  Verdict verdict = Verdict::pass;
  std::string reason;             // what was found, against what was expected
  Json numbers = Json::object();  // the same for programs
};

// `digests`: of each rank's documents; `same`: ranks that share samples have the same.
Check check_documents(const std::vector<uint64_t>& digests, bool same);
// The steps' losses; `failure` is what ended them early, else empty. It begins near ln(vocabulary), which is
// that of a guess, or below, stays finite, and does not rise.
Check check_losses(const std::vector<double>& losses, int64_t vocabulary, const std::string& failure);
Check check_kernel(const std::string& attention_kernel, bool by_reference, int64_t sequence_tokens);
// `published`: published_training_rates, or empty.
Check check_throughput(const StepRate& rate, int ranks, double least_matmul_share, const StepShares& shares,
                       const std::string& published);
Check check_one_rank(const VerifyResult& result);
Check check_memory(const DryRun& run);

}  // namespace trireme
