#include "trireme/train/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/kernels/attention_kernel.h"
#include "trireme/measure/spread.h"
#include "trireme/plan/first_run.h"
#include "trireme/train/checksum.h"

namespace trireme {
namespace {

Verdict passes(bool good) {
  return good ? Verdict::pass : Verdict::fail;
}

std::string in_powers(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1e", value);
  return text;
}

}  // namespace

Check check_documents(const std::vector<uint64_t>& digests, bool same) {
  Check check{"same documents on all ranks that share a sample", passes(same), "", {}};
  for (const uint64_t digest : digests) check.numbers["digests"].push_back(checksum_text(digest));
  if (same) {
    check.reason = cat("digest ", checksum_text(digests.front()), " of the documents that make the masks");
    return check;
  }
  check.reason = "their digests differ, and so would their attention masks:";
  for (size_t rank = 0; rank < digests.size(); ++rank)
    check.reason += cat(" rank ", rank, " ", checksum_text(digests[rank]));
  return check;
}

Check check_losses(const std::vector<double>& losses, int64_t vocabulary, const std::string& failure) {
  constexpr double kAboveGuess = 1;  // of a fresh model's first loss
  constexpr double kMostRise = 1.1;  // of the last fifth over the first
  Check check{cat("a sane loss over ", losses.size(), " steps"), Verdict::fail, "", {{"losses", losses}}};
  const auto odd = std::ranges::find_if_not(losses, [](double loss) { return std::isfinite(loss); });
  if (odd != losses.end())
    check.reason = cat("not finite: the loss of step ", odd - losses.begin() + 1, " is ", *odd);
  if (losses.empty()) check.reason = "no step was done";
  if (!failure.empty()) check.reason = failure;
  if (!check.reason.empty()) return check;
  const double guess = std::log(static_cast<double>(vocabulary));
  const auto fifth = static_cast<int64_t>(std::max<size_t>(1, losses.size() / 5));
  const double first = spread_of({losses.begin(), losses.begin() + fifth}).median;
  const double last = spread_of({losses.end() - fifth, losses.end()}).median;
  check.numbers.update({{"first", first}, {"last", last}, {"of_a_guess", guess}});
  const std::string found =
      cat(format_fixed(losses.front(), 4), " at first, ", format_fixed(first, 4), " in the first fifth, ",
          format_fixed(last, 4), " in the last; a guess has ", format_fixed(guess, 4));
  if (losses.front() > guess + kAboveGuess)
    check.reason =
        cat("worse than a guess: ", found, ". Weights, tokenizer and config.json may be of different models");
  else if (last > kMostRise * first)
    check.reason = cat("it rises: ", found, ". Try a lower --learning_rate, or a warm-up");
  else {
    check.verdict = Verdict::pass;
    check.reason = found;
  }
  return check;
}

Check check_kernel(const std::string& attention_kernel, bool by_reference, int64_t sequence_tokens) {
  Check check{"attention kernel",
              passes(!by_reference || sequence_tokens <= kMostByReference_tokens),
              attention_kernel,
              {{"kernel", attention_kernel}}};
  if (check.verdict == Verdict::fail)
    check.reason += cat(": the plain one, at ", format_count(sequence_tokens),
                        " tokens; give --attention auto, and --bf16 on a GPU");
  return check;
}

Check check_throughput(const StepRate& rate, int ranks, double least_matmul_share, const StepShares& shares,
                       const std::string& published) {
  const double share = rate.matmul_share(), a_rank = rate.tokens_per_second / ranks;
  Check check{"throughput", passes(share >= least_matmul_share),
              cat(format_fixed(a_rank, 1), " tokens/s a rank, model FLOPs at ", format_percent(share),
                  " of the measured matmul rate"),
              rate.to_json()};
  if (const auto mfu = rate.mfu())
    check.reason += cat(", ", format_percent(*mfu), " of the published one (MFU)");
  check.reason += published.empty() ? std::string("; no published figures for this device")
                                    : cat("; published: ", published);
  check.numbers["tokens_per_s_a_rank"] = a_rank;
  if (check.verdict == Verdict::pass) return check;
  const std::string cause = likely_cause(shares);
  check.numbers["likely_cause"] = cause;
  check.reason =
      cat("below ", format_percent(least_matmul_share), ": ", check.reason, ". Likely cause: ", cause);
  return check;
}

Check check_one_rank(const VerifyResult& result) {
  const TensorError& worst = result.tensors.front();
  Check check{cat(result.ranks, " ranks equal one in fp32"), passes(result.passed()), "", result.to_json()};
  check.reason =
      cat("loss ", format_fixed(result.loss, 7), " and ", format_fixed(result.reference_loss, 7), "; of ",
          result.tensors.size(), " numbers and gradients ", worst.name, " differs most, by ",
          in_powers(worst.error), " of its largest entry (", in_powers(result.tolerance), " is allowed)");
  return check;
}

Check check_memory(const DryRun& run) {
  const double share = run.fullest().share();
  Check check{
      cat("peak memory at ", format_count(run.sequence_tokens), " tokens"),
      passes(share <= run.allowed_share),
      cat("the fullest rank uses ", format_percent(share), " of ", format_bytes(run.fullest().room_bytes),
          run.on_gpu ? " of its GPU" : " of host memory that are its share", " (",
          format_percent(run.allowed_share), " is allowed",
          run.allowed_share > kFirstRunMemoryShare ? ", for as much is kept there as fits" : "", "); ",
          format_bytes(run.fullest().tensors_bytes), " of tensors, ",
          format_bytes(run.fullest().forecast_bytes), " by the forecast"),
      {{"sequence_tokens", run.sequence_tokens}}};
  for (const DryRun::Rank& rank : run.ranks)
    check.numbers["ranks"].push_back({{"tensors_bytes", rank.tensors_bytes},
                                      {"forecast_bytes", rank.forecast_bytes},
                                      {"process_bytes", rank.process_bytes},
                                      {"room_bytes", rank.room_bytes}});
  return check;
}

}  // namespace trireme
