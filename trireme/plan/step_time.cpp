#include "trireme/plan/step_time.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/plan/machine_groups.h"

namespace trireme {
namespace {

// In which a kind of work reads its operands.
int64_t element_bytes(const PlannedStep& step, const HardwareProfile& hardware, WorkKind kind) {
  if (!is_attention(kind)) return step.inputs.tile_bytes;
  return hardware.is_gpu ? step.inputs.storage_bytes : step.inputs.flash_element_bytes;
}

class Links {
 public:
  Links(const PlannedStep& step, const HardwareProfile& hardware)
      : inputs_(step.inputs),
        hardware_(hardware),
        ulysses_(groups_of(inputs_.ulysses)),
        sample_(groups_of(inputs_.ulysses * inputs_.ring)),
        all_{inputs_.ranks, hardware.machine_devices(inputs_.ranks)} {}

  bool crosses_machines(TrafficKind kind) const {
    switch (kind) {
      case TrafficKind::ulysses:
        return ulysses_.crosses();
      case TrafficKind::columns:
      case TrafficKind::ring:
        return sample_.crosses();
      case TrafficKind::gathered_parameters:
      case TrafficKind::summed_gradients:
      case TrafficKind::traded_parameters:
        return all_.crosses();
      case TrafficKind::offloaded_activations:
      case TrafficKind::offloaded_parameters:
      case TrafficKind::offloaded_gradients:
      case TrafficKind::offloaded_optimizer:
        return false;
    }
    throw InternalError("a kind of traffic has no link");
  }

  double seconds(const TrafficItem& item) const {
    switch (item.kind) {
      case TrafficKind::ulysses:
        return all_to_all(item, ulysses_);
      case TrafficKind::columns:
        return all_to_all(item, sample_);
      case TrafficKind::ring:
        return over(item, sample_.crosses());
      case TrafficKind::summed_gradients:
        return sums(item);
      case TrafficKind::gathered_parameters:
      case TrafficKind::traded_parameters:
        return round_all_ranks(item);
      case TrafficKind::offloaded_activations:
        return to(inputs_.offload.activations, item);
      case TrafficKind::offloaded_parameters:
        return to(inputs_.offload.parameters, item);
      case TrafficKind::offloaded_gradients:
        return to(Offload::cpu, item);
      case TrafficKind::offloaded_optimizer:
        return to(inputs_.offload.optimizer, item);
    }
    throw InternalError("a kind of traffic has no link");
  }

 private:
  struct Peers {
    int ranks, on_a_machine;  // of the rank with the fewest on its own
    bool crosses() const { return on_a_machine < ranks; }
  };
  Peers groups_of(int degree) const {
    return {degree, fewest_on_a_machine(inputs_.ranks, degree, hardware_.devices_per_machine)};
  }
  const LinkSpeed& checked(const LinkSpeed& link, const char* what) const {
    if (link.bytes_per_second > 0) return link;
    throw ConfigError(cat("the hardware profile ", hardware_.name, " has no rate ", what,
                          "; measure it with trireme bench hardware, or take fewer devices"));
  }
  const LinkSpeed& link(bool crosses) const {
    return crosses ? checked(hardware_.across_machines, "between machines")
                   : checked(hardware_.within_machine, "between devices of a machine");
  }
  double over(const TrafficItem& item, bool crosses) const {
    return link(crosses).seconds(item.calls, item.bytes);
  }
  // In rings through all ranks, which leave a machine over the network links of all its devices
  // (NCCL's all-gather and reduce-scatter).
  double round_all_ranks(const TrafficItem& item) const {
    if (!hardware_.is_gpu) return all_to_all(item, all_);
    if (!all_.crosses()) return over(item, /*crosses=*/false);
    const double within = all_.on_a_machine > 1 ? over(item, /*crosses=*/false) : 0;
    return std::max(within, link(/*crosses=*/true).seconds(item.calls, item.bytes / all_.on_a_machine));
  }
  // To ranks of the machine and to others at the same time, each over its own links; of the rank with most of
  // its group on other machines.
  double all_to_all(const TrafficItem& item, const Peers& group) const {
    if (!group.crosses()) return over(item, /*crosses=*/false);
    const double outside =
        static_cast<double>(group.ranks - group.on_a_machine) / static_cast<double>(group.ranks - 1);
    const LinkSpeed& network = link(/*crosses=*/true);
    const double within =
        outside < 1 ? link(/*crosses=*/false).seconds(item.calls, item.bytes * (1 - outside)) : 0;
    return std::max(within, network.seconds(item.calls, item.bytes * outside));
  }
  // Those in 16 bits are made from blocks of all ranks (comm/collectives.h), and ZeRO 0 gathers the result.
  double sums(const TrafficItem& item) const {
    if (inputs_.reduce_bytes == kFloat_bytes) return round_all_ranks(item);
    if (inputs_.zero > 0) return all_to_all(item, all_);
    const TrafficItem half{item.kind, item.calls / 2, item.bytes / 2};
    return all_to_all(half, all_) + round_all_ranks(half);
  }
  double to(Offload offload, const TrafficItem& item) const {
    if (offload == Offload::disk)
      return std::max(checked(hardware_.disk_write, "of writing to a disk").seconds(item.calls, item.bytes),
                      checked(hardware_.disk_read, "of reading from a disk").seconds(item.calls, item.bytes));
    return hardware_.is_gpu ? checked(hardware_.to_host, "to the host").seconds(item.calls, item.bytes) : 0;
  }

  const ForecastInputs& inputs_;
  const HardwareProfile& hardware_;
  const Peers ulysses_, sample_, all_;
};

double seconds_of(const std::vector<WorkItem>& items, const PlannedStep& step,
                  const HardwareProfile& hardware, std::vector<KindSeconds>* by_kind) {
  double sum = 0;
  for (const WorkItem& item : items) {
    const Rates& rates = hardware.rates(element_bytes(step, hardware, item.kind));
    const auto table = rates.find(item.kind);
    TRIREME_ASSERT(table != rates.end(), "the profile ", hardware.name, " has no rate of ",
                   name_of(item.kind));
    const double seconds = item.amount / table->second.per_second(item.size, item.width);
    sum += seconds;
    if (by_kind == nullptr) continue;
    const auto known = std::ranges::find(*by_kind, item.kind, &KindSeconds::kind);
    if (known == by_kind->end()) {
      by_kind->push_back({item.kind, item.amount, seconds});
    } else {
      known->amount += item.amount;
      known->seconds += seconds;
    }
  }
  return sum;
}

// Traffic that goes beside a pass, over a link that kinds of traffic share.
struct Beside {
  enum Link : size_t { between_ranks, to_host, from_host };
  enum Pass : size_t { forward, backward };
  Link link;
  Pass pass;
  double seconds;
};
// Seconds of all that goes over a link beside a pass.
using SharedSeconds = std::array<std::array<double, 2>, 3>;

// What a rank does while data moves, and what it still waits for.
struct Overlap {
  const ForecastInputs& inputs;
  bool hides;
  double compute_seconds, forward_seconds, attention_seconds;  // of a step
  double micro_batches;
  double forward_gathered_share;
  double host_step_seconds;

  double backward_seconds() const { return compute_seconds - forward_seconds; }
  double first_forward_seconds() const { return forward_seconds / micro_batches; }
  double last_backward_seconds() const { return backward_seconds() / micro_batches; }
  double seconds_of(Beside::Pass pass) const {
    return pass == Beside::Pass::forward ? forward_seconds : backward_seconds();
  }
  // Of the host's optimizer: the next step's first use of a unit waits for it, and with updates in backward the
  // step's end.
  double host_step_hidden_seconds() const {
    return inputs.update_in_backward ? backward_seconds() : first_forward_seconds();
  }
  double beyond(double seconds, double hidden) const {
    return hides ? std::max(0.0, seconds - hidden) : seconds;
  }
  // Of traffic that takes `seconds`, of offloaded activations in each direction; empty: waited_seconds.
  std::vector<Beside> beside(TrafficKind kind, double seconds) const {
    using enum Beside::Link;
    using enum Beside::Pass;
    const double in_forward = forward_gathered_share * seconds;
    switch (kind) {
      case TrafficKind::gathered_parameters:
        return {{between_ranks, forward, in_forward}, {between_ranks, backward, seconds - in_forward}};
      case TrafficKind::summed_gradients:
        if (sums_go_beside_backward(inputs) && inputs.zero >= 2) return {{between_ranks, backward, seconds}};
        break;
      case TrafficKind::offloaded_parameters:
        return {{from_host, forward, in_forward}, {from_host, backward, seconds - in_forward}};
      case TrafficKind::offloaded_activations:
        return {{to_host, forward, seconds}, {from_host, backward, seconds}};
      case TrafficKind::offloaded_gradients:
        // Both directions on one stream (shard/offloaded_sums.h).
        if (gradients_leave_in_backward(inputs)) return {{to_host, backward, seconds}};
        break;
      default:
        break;
    }
    return {};
  }
  // Of traffic that shares no link.
  double waited_seconds(TrafficKind kind, double seconds) const {
    switch (kind) {
      case TrafficKind::ulysses:
        return inputs.head_chunks == 1
                   ? seconds
                   : std::max(seconds / inputs.head_chunks, beyond(seconds, attention_seconds));
      case TrafficKind::columns:
        return seconds;
      case TrafficKind::ring:
        return inputs.gathers_keys ? seconds : beyond(seconds, attention_seconds);
      case TrafficKind::summed_gradients:
        return sums_go_beside_backward(inputs) ? beyond(seconds, last_backward_seconds()) : seconds;
      case TrafficKind::offloaded_gradients:
        return beyond(seconds, first_forward_seconds());
      case TrafficKind::traded_parameters:
        return inputs.offload.optimizer == Offload::none ? beyond(seconds, first_forward_seconds()) : seconds;
      case TrafficKind::offloaded_optimizer:
        // Read ahead of the unit that is stepped, and written behind it.
        return beyond(seconds, std::max(host_step_hidden_seconds(), host_step_seconds));
      case TrafficKind::gathered_parameters:
      case TrafficKind::offloaded_activations:
      case TrafficKind::offloaded_parameters:
        break;
    }
    throw InternalError("a kind of traffic has no wait");
  }
};

double host_step_seconds(const StepWork& work, const HardwareProfile& hardware) {
  if (work.host_optimizer_elements == 0) return 0;
  if (hardware.host_optimizer_per_second <= 0)
    throw ConfigError(cat("the hardware profile ", hardware.name,
                          " has no rate of the optimizer on the host; leave --offload_optimizer out"));
  return work.host_optimizer_elements / hardware.host_optimizer_per_second;
}

}  // namespace

StepTime step_time(const PlannedStep& step, const HardwareProfile& hardware) {
  const ForecastInputs& inputs = step.inputs;
  const StepWork work = step_work(step);
  StepTime time;
  time.compute_seconds = seconds_of(work.items, step, hardware, &time.compute);
  double attention = 0;
  for (const KindSeconds& kind : time.compute)
    if (is_attention(kind.kind)) attention += kind.seconds;
  const double forward = seconds_of(work.forward_items, step, hardware, nullptr);
  const Overlap overlap{.inputs = inputs,
                        .hides = hardware.is_gpu,
                        .compute_seconds = time.compute_seconds,
                        .forward_seconds = forward,
                        .attention_seconds = attention,
                        .micro_batches = static_cast<double>(step.inputs.micro_batches),
                        .forward_gathered_share = work.forward_gathered_share,
                        .host_step_seconds = host_step_seconds(work, hardware)};
  time.host_optimizer_waited_seconds =
      overlap.beyond(overlap.host_step_seconds, overlap.host_step_hidden_seconds());
  const Links links(step, hardware);
  std::vector<std::vector<Beside>> beside;
  SharedSeconds shared{};
  for (const TrafficItem& item : work.traffic) {
    const double seconds = links.seconds(item);
    const bool both_ways = item.kind == TrafficKind::offloaded_activations;
    beside.push_back(overlap.beside(item.kind, seconds));
    for (const Beside& one : beside.back()) shared[one.link][one.pass] += one.seconds;
    time.traffic.push_back({item.kind, item.bytes, both_ways ? 2 * seconds : seconds,
                            beside.back().empty() ? overlap.waited_seconds(item.kind, seconds) : 0,
                            links.crosses_machines(item.kind)});
  }
  double waited = 0;
  for (size_t i = 0; i < beside.size(); ++i) {
    for (const Beside& one : beside[i]) {
      const double together = shared[one.link][one.pass];
      if (together > 0)
        time.traffic[i].waited_seconds +=
            overlap.beyond(together, overlap.seconds_of(one.pass)) * one.seconds / together;
    }
    waited += time.traffic[i].waited_seconds;
  }
  time.overhead_seconds =
      hardware.step_seconds + hardware.micro_batch_seconds * static_cast<double>(step.inputs.micro_batches);
  time.seconds = time.compute_seconds + waited + time.host_optimizer_waited_seconds + time.overhead_seconds;
  time.least_seconds = time.seconds / (1 + hardware.time_error_share);
  time.most_seconds = time.seconds * (1 + hardware.time_error_share);
  time.tokens_per_second = step.tokens() / time.seconds;
  const double peak = inputs.storage_bytes == 2 ? hardware.peak_flops_16_bit : hardware.peak_flops_32_bit;
  time.mfu = step.model_flops() / time.seconds / (peak * inputs.ranks);
  return time;
}

}  // namespace trireme
