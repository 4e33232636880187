#include "trireme/base/step_tokens.h"

#include "trireme/base/error.h"
#include "trireme/base/option_list.h"
#include "trireme/base/sizes.h"

namespace trireme {

double StepTokens::of_rank() const {
  return static_cast<double>(sample_tokens) / sharing_ranks * static_cast<double>(batch) *
         static_cast<double>(accumulation);
}

bool StepTokens::fit(int64_t host_memory_bytes) const {
  constexpr double kBytesOfToken = 16;  // the token and its target
  return of_rank() * kBytesOfToken <= static_cast<double>(host_memory_bytes);
}

void check_step_tokens(const StepTokens& step, int64_t host_memory_bytes) {
  if (step.fit(host_memory_bytes)) return;
  throw ConfigError(cat("one step of a rank has ", number_text(step.of_rank()), " tokens (", step.batch,
                        " samples of --per_device_train_batch_size x ", step.accumulation,
                        " of --gradient_accumulation_steps x ", format_count(step.sample_tokens),
                        " tokens / ", step.sharing_ranks, " ranks), more than the ",
                        format_bytes(host_memory_bytes),
                        " of host memory of a rank hold; use smaller numbers"));
}

}  // namespace trireme
