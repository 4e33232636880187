#include "trireme/measure/likely_cause.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

constexpr double kLargeShare = 0.25;        // of a step
constexpr int64_t kReferenceTokens = 1024;  // beyond which the plain kernel's S x S work shows
constexpr int64_t kFewTokens = 2048;

struct PublishedRun {
  std::string_view gpu;
  std::string_view text;
};
constexpr std::array kPublishedRuns = {
    PublishedRun{"H200", "8B at 1.2M tokens on one H200 (ALST, arXiv 2506.13996)"},
    PublishedRun{"H100",
                 "8B at 500K on one H100: 495 tokens/s (ALST, arXiv 2506.13996); at 1M on 8: 345 tokens/s a "
                 "GPU, 34 % MFU (TRL, ring); at 3.7M on 8: 75 tokens/s a GPU, 22.5 % MFU (ALST)"},
    PublishedRun{"A800", "7B at 1M on 8 x A800: 52 % MFU (MEMO)"},
    PublishedRun{"A100", "54 % of peak (DeepSpeed-Ulysses, arXiv 2309.14509)"},
};

}  // namespace

std::string likely_cause(const StepShares& shares) {
  struct Wait {
    double seconds;
    const char* what;
    const char* advice;
  };
  const std::array waits{
      Wait{shares.data_seconds, "waiting for data",
           "read from a faster disk, or a set made by trireme tokenize"},
      Wait{
          shares.exchange_seconds, "exchanges between ranks, the wait for the slowest of them included",
          "fewer ranks a sequence, --ulysses inside a machine, or --head_chunks; trireme bench comm measures "
          "the links"},
      Wait{shares.offload_seconds, "waiting for what is offloaded",
           "leave an --offload_... out, or give --offload_dir on a faster disk"},
  };
  const Wait& longest = *std::ranges::max_element(waits, {}, &Wait::seconds);
  if (longest.seconds > kLargeShare * shares.step_seconds)
    return cat(longest.what, ", ", format_percent(longest.seconds / shares.step_seconds, 0),
               " of a step: ", longest.advice);
  if (shares.attends_by_reference && shares.attention_tokens > kReferenceTokens)
    return cat("the attention kernel '", shares.attention_kernel,
               "': give --attention auto, and --bf16 on a GPU");
  if (shares.tokens_of_rank < kFewTokens)
    return cat("too little work at once, ", shares.tokens_of_rank,
               " tokens of a micro-batch on a rank: a longer sequence, or a larger "
               "--per_device_train_batch_size");
  if (shares.copies_are_not_timed)
    return "perhaps copies of what is offloaded to the host, which are not timed on a GPU: try without";
  return "no wait stands out: other programs on this machine, clocks that were lowered, or a small model; "
         "trireme bench step and --memory_report tell more";
}

std::string published_training_rates(const std::string& gpu_name) {
  for (const PublishedRun& run : kPublishedRuns)
    if (gpu_name.find(run.gpu) != std::string::npos) return std::string(run.text);
  return "";
}

}  // namespace trireme
