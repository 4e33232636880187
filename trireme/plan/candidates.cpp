#include "trireme/plan/candidates.h"

#include <algorithm>
#include <cmath>

#include "trireme/attention/head_shares.h"
#include "trireme/base/sample_layout.h"
#include "trireme/base/step_tokens.h"
#include "trireme/forecast/choose_recompute.h"
#include "trireme/forecast/tile_rules.h"
#include "trireme/kernels/token_tiles.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {
namespace {

// Rows of a rank beyond which a larger micro-batch makes no product faster.
constexpr int64_t kEnoughRows = int64_t{1} << 17;

struct Batches {
  int64_t batch, accumulation;
};

class CandidateList {
 public:
  CandidateList(const PlanRequest& request, int devices, int64_t tokens)
      : request_(request),
        pinned_(request.pinned),
        devices_(devices),
        tokens_(tokens),
        steps_on_host_(host_can_step(planned_inputs(request, {}, tokens, /*sp_rank=*/0), request.hardware)) {}

  std::vector<Candidate> run() {
    if (!request_.knows_attention(tokens_)) return {};
    for (int sp = 1; sp <= devices_; ++sp) {
      if (devices_ % sp != 0 || (pinned_.sp && *pinned_.sp != sp)) continue;
      for (int ulysses = 1; ulysses <= sp; ++ulysses)
        if (sp % ulysses == 0 && is_possible(ulysses, sp / ulysses)) add_mesh(ulysses, sp / ulysses);
    }
    return std::move(all_);
  }

 private:
  bool is_possible(int ulysses, int ring) const {
    if ((pinned_.ulysses && *pinned_.ulysses != ulysses) || (pinned_.ring && *pinned_.ring != ring))
      return false;
    if (ulysses > request_.model.heads || (ring > 1 && !request_.settings.ring_possible)) return false;
    const int chunks = pinned_.head_chunks.value_or(1);
    if (chunks > 1 && (ulysses == 1 || chunks > most_heads_of_rank(request_.model.heads, ulysses)))
      return false;
    return SampleLayout{tokens_, ulysses, ring}.is_possible(request_.settings.strict_divisible);
  }

  std::vector<Batches> batches(int data_parallel, int64_t shard_tokens) const {
    if (request_.samples_per_step == 0)
      return {{pinned_.batch.value_or(1), pinned_.accumulation.value_or(1)}};
    if (request_.samples_per_step % data_parallel != 0) return {};
    const int64_t samples = request_.samples_per_step / data_parallel;
    std::vector<Batches> all;
    for (int64_t batch = 1; batch <= samples; ++batch) {
      const bool useful = batch == 1 || (batch == samples && request_.settings.update_in_backward) ||
                          ((batch & (batch - 1)) == 0 && batch * shard_tokens <= kEnoughRows);
      const bool whole = samples % batch == 0;
      if (!whole || (pinned_.batch ? *pinned_.batch != batch : !useful && !pinned_.accumulation)) continue;
      if (pinned_.accumulation && *pinned_.accumulation != samples / batch) continue;
      if (request_.settings.update_in_backward && batch != samples) continue;
      all.push_back({batch, samples / batch});
    }
    return all;
  }

  void add_mesh(int ulysses, int ring) {
    Configuration of_mesh;
    of_mesh.ulysses = ulysses;
    of_mesh.ring = ring;
    of_mesh.data_parallel = devices_ / (ulysses * ring);
    const int64_t shard_tokens = SampleLayout{tokens_, ulysses, ring}.size(0);
    for (const Batches& each : batches(of_mesh.data_parallel, shard_tokens)) {
      const StepTokens step{tokens_, of_mesh.sequence_ranks(), each.batch, each.accumulation};
      if (!step.fit(request_.hardware.rank_host_bytes(devices_))) continue;
      of_mesh.batch = each.batch;
      of_mesh.accumulation = each.accumulation;
      for (const int chunks : head_chunks(ulysses)) {
        of_mesh.head_chunks = chunks;
        add_tiles(of_mesh, each.batch * shard_tokens);
      }
    }
  }

  std::vector<int> head_chunks(int ulysses) const {
    if (pinned_.head_chunks) return {*pinned_.head_chunks};
    std::vector<int> all{1};
    for (const int chunks : {2, 4})
      if (ulysses > 1 && chunks <= most_heads_of_rank(request_.model.heads, ulysses)) all.push_back(chunks);
    return all;
  }

  void add_tiles(Configuration of_tiles, int64_t rows) {
    const bool on_gpu = request_.hardware.is_gpu;
    const int64_t tile = tile_tokens_by_rule(request_.model, on_gpu);
    const int64_t logits_tile = logits_tile_tokens_by_rule(request_.model.vocab, on_gpu);
    const auto halved = [&](int64_t by_rule) { return std::max(kLeastTile_tokens, by_rule / 2); };
    of_tiles.tile_tokens = pinned_.tile_tokens.value_or(tile);
    of_tiles.logits_tile_tokens = pinned_.logits_tile_tokens.value_or(logits_tile);
    add_zero(of_tiles);
    Configuration half = of_tiles;
    if (!pinned_.tile_tokens) half.tile_tokens = halved(tile);
    if (!pinned_.logits_tile_tokens) half.logits_tile_tokens = halved(logits_tile);
    const auto differs = [&](int64_t a, int64_t b) { return largest_tile(rows, a) != largest_tile(rows, b); };
    if (differs(half.tile_tokens, of_tiles.tile_tokens) ||
        differs(half.logits_tile_tokens, of_tiles.logits_tile_tokens))
      add_zero(half);
  }

  std::vector<Offload> offloads(const std::optional<Offload>& pinned, bool to_host) const {
    if (pinned) return {*pinned};
    const HardwareProfile& hardware = request_.hardware;
    std::vector<Offload> all{Offload::none};
    if (!to_host) return all;
    if (hardware.can_offload_to(Offload::cpu)) all.push_back(Offload::cpu);
    if (request_.allow_disk && hardware.can_offload_to(Offload::disk)) all.push_back(Offload::disk);
    return all;
  }

  void add_zero(Configuration of_zero) {
    const RunSettings& settings = request_.settings;
    for (int zero = pinned_.zero.value_or(0); zero <= pinned_.zero.value_or(3); ++zero) {
      if (settings.whole_parameters && zero > 0 && devices_ > 1) continue;
      of_zero.zero = zero;
      for (const Offload parameters : offloads(pinned_.offload_parameters, zero == 3)) {
        if (parameters != Offload::none && zero != 3) continue;
        of_zero.offload.parameters = parameters;
        for (const Offload optimizer : offloads(pinned_.offload_optimizer, steps_on_host_)) {
          // On one device a stage shards nothing: it lets parameters be offloaded, and gradients leave as
          // units close where the optimizer is.
          const bool of_use = zero == 0 || parameters != Offload::none ||
                              (zero == 2 && optimizer != Offload::none && !settings.update_in_backward);
          if (devices_ == 1 && !pinned_.zero && !of_use) continue;
          of_zero.offload.optimizer = optimizer;
          for (const Offload activations : offloads(pinned_.offload_activations, true)) {
            of_zero.offload.activations = activations;
            add_recompute(of_zero);
          }
        }
      }
    }
  }

  void add_recompute(const Configuration& of_recompute) {
    const int64_t layers = request_.model.layers;
    Candidate candidate{of_recompute};
    const Offload activations = of_recompute.offload.activations;
    const GroupSizes sizes = sizes_of_groups(pinned_.checkpoint_every, layers, activations);
    RecomputePlan& plan = candidate.configuration.recompute;
    plan = {.checkpoint_every = sizes.fewest, .layers = layers};
    candidate.most_of_group = sizes.most;
    const auto add = [&](const RecomputePlan& chosen) {
      plan = chosen;
      all_.push_back(std::move(candidate));
    };
    const auto add_order = [&](const KeepOrder& order, int64_t least) {
      candidate.order = order;
      candidate.least_keeping = least;
      candidate.most_keeping = order.last_position();
      candidate.configuration = candidate.keeping(candidate.most_keeping);
      all_.push_back(std::move(candidate));
    };
    const auto share = [&](const std::optional<double>& pinned, double otherwise) {  // of whole layers
      const auto all = static_cast<double>(layers);
      return pinned ? std::round(*pinned * all) / all : otherwise;
    };
    const std::optional<Recompute>& pinned = pinned_.recompute;
    if (pinned == Recompute::full) return add({Recompute::full, sizes.fewest, 1, layers});
    const RecomputePlan asked{pinned.value_or(Recompute::keep_attention),
                              sizes.fewest,
                              share(pinned_.keep_fraction, 1),
                              layers,
                              share(pinned_.keep_qkv_fraction, 0),
                              share(pinned_.keep_mlp_fraction, 0)};
    if (!asked.keeps_attention_at_most()) {
      candidate.most_of_group = 1;
      if (activations == Offload::none && sizes.fewest == 1) add(asked);
      return;
    }
    if (pinned_.keep_fraction) return add(asked);
    if (pinned) return add_order({KeptPart::attention, layers}, 1);
    add_order(KeepOrder(planned_inputs(request_, candidate.configuration, tokens_, /*sp_rank=*/0)), 0);
  }

  const PlanRequest& request_;
  const PinnedOptions& pinned_;
  const int devices_;
  const int64_t tokens_;
  const bool steps_on_host_;
  std::vector<Candidate> all_;
};

}  // namespace

Configuration Candidate::keeping(int64_t position) const {
  Configuration chosen = configuration;
  if (order)
    chosen.recompute = plan_keeping(order->at(position), chosen.recompute.checkpoint_every, order->layers());
  return chosen;
}

Candidate Candidate::in_groups(int64_t layers_of_group) const {
  Candidate chosen = *this;
  chosen.configuration.recompute.checkpoint_every = chosen.most_of_group = layers_of_group;
  if (order && layers_of_group > 1) {
    chosen.order = KeepOrder(KeptPart::attention, order->layers());
    chosen.most_keeping = order->layers();
    chosen.configuration = chosen.keeping(chosen.most_keeping);
  }
  return chosen;
}

std::vector<Candidate> list_candidates(const PlanRequest& request, int devices, int64_t tokens) {
  return CandidateList(request, devices, tokens).run();
}

}  // namespace trireme
