#include "trireme/plan/check_request.h"

#include <algorithm>

#include "trireme/attention/head_shares.h"
#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"
#include "trireme/base/sizes.h"
#include "trireme/base/step_tokens.h"
#include "trireme/plan/candidates.h"

namespace trireme {
namespace {

std::string device_count(const PlanRequest& request, int64_t count) {
  return cat(count, " ", request.hardware.device_noun(), count == 1 ? "" : "s");
}

void check_machines(const PlanRequest& request, int devices) {
  const int machine = request.hardware.devices_per_machine;
  if (devices <= machine || devices % machine == 0) return;
  const int below = devices / machine * machine;
  throw ConfigError(cat("--gpus ", devices, ": machines with ", request.hardware.name, " have ", machine,
                        ", and ", devices, " are not whole machines; give ", below, " or ", below + machine,
                        ", or --gpus_per_machine N if yours have another number"));
}

void check_links(const HardwareProfile& hardware, int devices) {
  const auto refuse = [&](const auto&... between) {
    throw ConfigError(cat("--gpus ", devices, ": the hardware profile ", hardware.name,
                          " has no rate between ", between...,
                          ", or measure it with trireme bench hardware"));
  };
  if (hardware.machine_devices(devices) > 1 && hardware.within_machine.bytes_per_second <= 0)
    refuse("devices of a machine; take one");
  if (devices > hardware.devices_per_machine && hardware.across_machines.bytes_per_second <= 0)
    refuse("machines of ", hardware.devices_per_machine, "; take at most so many");
}

void check_degrees(const PlanRequest& request, int devices) {
  const PinnedOptions& pinned = request.pinned;
  if (pinned.ulysses) check_one_rank_a_head(request.model.heads, *pinned.ulysses);
  const int degree = pinned.sp.value_or(pinned.ulysses.value_or(1) * pinned.ring.value_or(1));
  if (devices % degree != 0)
    throw ConfigError(cat("--gpus ", devices, ": ", degree, " ranks are to share a sample",
                          pinned.sp ? cat(" (--sp ", degree, ")") : "", ", expected a multiple of ", degree));
  for (const auto& [name, given] : {std::pair("--ulysses", pinned.ulysses), {"--ring", pinned.ring}})
    if (pinned.sp && given && degree % *given != 0)
      throw ConfigError(cat("--sp ", degree, " is not a multiple of ", name, " ", *given));
  if (pinned.head_chunks.value_or(1) > 1 && pinned.ulysses.value_or(2) == 1)
    throw ConfigError(cat("--head_chunks ", *pinned.head_chunks,
                          " cuts the heads that --ulysses ranks exchange, and with --ulysses 1 there are "
                          "none; leave one of them out"));
}

void check_samples(const PlanRequest& request, int devices, int64_t tokens) {
  const int64_t samples = request.samples_per_step;
  const PinnedOptions& pinned = request.pinned;
  if (samples == 0) return;
  const int64_t batch = pinned.batch.value_or(1) * pinned.accumulation.value_or(1);
  if (samples % batch != 0)
    throw ConfigError(cat("--samples_per_step ", samples, " is not a multiple of ", batch,
                          " (--per_device_train_batch_size x --gradient_accumulation_steps)"));
  const int64_t sharing = (devices + samples / batch - 1) / (samples / batch);
  if (tokens > 0 && tokens < sharing)
    throw ConfigError(cat("a sequence of ", tokens, " tokens is shorter than the ", sharing,
                          " ranks that share it (--gpus ", devices, ", --samples_per_step ", samples,
                          "); take longer sequences, fewer GPUs, or more samples a step"));
  // The most ranks that can share a sample, with every sample of a step on ranks of its own.
  const int64_t ring = pinned.ring.value_or(request.settings.ring_possible ? devices : 1);
  const int64_t most =
      std::min<int64_t>(pinned.ulysses.value_or(static_cast<int>(request.model.heads)) * ring,
                        pinned.sp.value_or(devices)) *
      (samples / batch);
  if (devices > most)
    throw ConfigError(cat("--gpus ", devices, ": ", samples / batch, " samples at once (--samples_per_step ",
                          samples, ") on at most ", most / (samples / batch),
                          " ranks each (heads x ring) use ", device_count(request, most),
                          "; give fewer GPUs, more samples a step, or leave --ring, --ulysses and --sp out"));
}

// With as many ranks to a sample as may be, so that a rank holds the least of it.
void check_tokens(const PlanRequest& request, int devices, int64_t tokens) {
  const PinnedOptions& pinned = request.pinned;
  const int ranks =
      pinned.sp.value_or(pinned.ulysses && pinned.ring ? *pinned.ulysses * *pinned.ring : devices);
  const int64_t samples = request.samples_per_step * ranks / devices;  // of the ranks that share them
  const int64_t accumulation = pinned.accumulation.value_or(1);
  const int64_t batch = pinned.batch.value_or(std::max<int64_t>(1, samples / accumulation));
  check_step_tokens(
      {tokens, ranks, batch, pinned.accumulation.value_or(std::max<int64_t>(1, samples / batch))},
      request.hardware.rank_host_bytes(devices));
}

}  // namespace

void check_request(const PlanRequest& request, int devices, int64_t tokens) {
  if (request.settings.update_in_backward && request.pinned.accumulation.value_or(1) > 1)
    throw ConfigError(
        cat("--update_in_backward steps a layer in its backward, and --gradient_accumulation_steps ",
            *request.pinned.accumulation, " goes on adding to its gradient; leave one of them out"));
  if (request.settings.attention == AttentionKernel::flash4 &&
      (!request.hardware.flash4 || request.settings.precision != Precision::bf16))
    throw ConfigError(cat("--attention flash4: got ", name_of(request.settings.precision), " on ",
                          request.hardware.name, ", expected bf16 on a Hopper GPU; use --attention auto"));
  if (!request.knows_attention(tokens))
    throw ConfigError(request.hardware.is_gpu
                          ? cat("--attention reference is not planned on a GPU, here ", request.hardware.name,
                                ": no profile has that kernel's rate; use --attention auto")
                          : cat("--attention reference: got ", format_count(tokens),
                                " tokens, expected at most ", format_count(kMostByReference_tokens),
                                ", beyond which its scores count; use --attention auto"));
  if (request.model.caps_scores && request.hardware.is_gpu) check_caps_scores(request.settings.attention);
  check_machines(request, devices);
  check_degrees(request, devices);
  check_samples(request, devices, tokens);
  if (tokens > 0) check_tokens(request, devices, tokens);
  const PinnedOptions& pinned = request.pinned;
  const int ulysses = pinned.ulysses.value_or(1), ring = pinned.ring.value_or(1);
  if (tokens > 0) check_a_token_for_each_rank({tokens, ulysses, ring});
  if (tokens > 0 && request.settings.strict_divisible && (pinned.ulysses || pinned.ring))
    check_divisible({tokens, ulysses, ring});
  check_links(request.hardware, devices);
  if (tokens > 0 && list_candidates(request, devices, tokens).empty())
    throw ConfigError(
        cat("no configuration shares ", format_count(tokens), " tokens over ", device_count(request, devices),
            " with the options that were given (ranks that share a sample must divide the "
            "GPUs, samples of a step the groups of them, --head_chunks the heads of a rank; "
            "--offload_params needs --zero 3, --offload_activations another --recompute than "
            "none, and no --keep_qkv_fraction or --keep_mlp_fraction); leave some of them out"));
}

}  // namespace trireme
