// The seconds of a step: what is waited for, and which link it goes over.
#include "trireme/plan/step_time.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "trireme/plan/machine_groups.h"

#include "tests/plan/planned_step.h"

namespace trireme::testing {
namespace {

TrafficSeconds traffic_of(const StepTime& time, TrafficKind kind) {
  for (const TrafficSeconds& traffic : time.traffic)
    if (traffic.kind == kind) return traffic;
  return {};
}

TEST(StepTime, a_gpu_hides_what_comes_ahead_and_a_cpu_hides_nothing) {
  PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
  step.inputs.zero = 3;
  for (const bool is_gpu : {true, false}) {
    const StepTime time = step_time(step, round_profile(is_gpu));
    double waited = 0, hidden = 0;
    for (const TrafficSeconds& traffic : time.traffic) {
      waited += traffic.waited_seconds;
      if (traffic.kind == TrafficKind::gathered_parameters) hidden = traffic.seconds - traffic.waited_seconds;
    }
    EXPECT_GT(time.compute_seconds, 0);
    EXPECT_DOUBLE_EQ(time.seconds, time.compute_seconds + waited);
    if (is_gpu) {
      EXPECT_GT(hidden, 0);
    } else {
      EXPECT_EQ(hidden, 0);
    }
  }
}

// On a GPU beside the next forward, as the host's arithmetic is: the slowest of the three is seen.
TEST(StepTime, an_optimizer_on_a_disk_takes_the_time_of_its_disk) {
  const auto slower_by = [](bool is_gpu, double write_bytes_per_second) {
    PlannedStep step = stepped_on_the_host(is_gpu);
    HardwareProfile hardware = round_profile(is_gpu);
    hardware.host_optimizer_per_second = 1e12;
    hardware.disk_read = {0, 2e9};
    hardware.disk_write = {0, write_bytes_per_second};
    const double on_host = step_time(step, hardware).seconds;
    step.inputs.offload.optimizer = Offload::disk;
    return step_time(step, hardware).seconds - on_host;
  };
  const double bytes = 8 * kSmallElements;
  EXPECT_NEAR(slower_by(false, 1e9), bytes / 1e9, 1e-12);
  EXPECT_NEAR(slower_by(false, 4e9), bytes / 2e9, 1e-12);
  EXPECT_LT(slower_by(true, 1e9), bytes / 1e9);
  EXPECT_GT(slower_by(true, 1e9), bytes / 2e9);
  EXPECT_EQ(slower_by(true, 1e15), slower_by(true, 2e9));
}

TEST(StepTime, a_gpu_hides_sums_of_gradients_that_are_waited_for_one_unit_later) {
  const auto hides = [](int zero, bool is_gpu, bool update_in_backward = false) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    step.inputs.update_in_backward = update_in_backward;
    step.inputs.device_is_host = !is_gpu;
    for (const TrafficSeconds& traffic : step_time(step, round_profile(is_gpu)).traffic)
      if (traffic.kind == TrafficKind::summed_gradients) return traffic.waited_seconds < traffic.seconds;
    return false;
  };
  for (const int zero : {0, 1, 2, 3}) {
    EXPECT_TRUE(hides(zero, /*is_gpu=*/true)) << "ZeRO " << zero;
    EXPECT_FALSE(hides(zero, /*is_gpu=*/false)) << "ZeRO " << zero;
  }
  EXPECT_FALSE(hides(3, /*is_gpu=*/true, /*update_in_backward=*/true));
}

// ZeRO 2 sums each of them.
TEST(StepTime, sums_of_a_whole_step_go_beside_its_last_micro_batch) {
  const auto waited = [](int zero, int64_t accumulation) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.micro_batches = accumulation;
    step.inputs.zero = zero;
    step.inputs.device_is_host = false;
    HardwareProfile hardware = round_profile(/*is_gpu=*/true);
    hardware.within_machine = {0, 1};  // takes longer than any step computes
    const StepTime time = step_time(step, hardware);
    const TrafficSeconds sums = traffic_of(time, TrafficKind::summed_gradients);
    return std::pair{sums.seconds, sums.seconds - sums.waited_seconds};
  };
  for (const int zero : {0, 1}) {
    const auto [seconds, hidden] = waited(zero, 1);
    const auto [seconds_of_4, hidden_of_4] = waited(zero, 4);
    EXPECT_EQ(seconds_of_4, seconds) << "ZeRO " << zero;
    EXPECT_GT(hidden, 0) << "ZeRO " << zero;
    EXPECT_NEAR(hidden_of_4 / hidden, 1, 0.01) << "ZeRO " << zero;
  }
  const auto [seconds, hidden] = waited(2, 1);
  const auto [seconds_of_4, hidden_of_4] = waited(2, 4);
  EXPECT_NEAR(seconds_of_4 / seconds, 4, 1e-9);
  EXPECT_NEAR(hidden_of_4 / hidden, 4, 0.1);
}

TEST(StepTime, a_gpu_hides_new_values_of_units_that_it_stepped_itself) {
  const auto traded = [](int zero, bool is_gpu, Offload optimizer) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    step.inputs.device_is_host = !is_gpu;
    step.inputs.offload.optimizer = optimizer;
    return traffic_of(step_time(step, round_profile(is_gpu)), TrafficKind::traded_parameters);
  };
  for (const int zero : {1, 2}) {
    const TrafficSeconds hidden = traded(zero, /*is_gpu=*/true, Offload::none);
    EXPECT_GT(hidden.seconds, 0);
    EXPECT_EQ(hidden.waited_seconds, 0);
    for (const TrafficSeconds& seen :
         {traded(zero, /*is_gpu=*/true, Offload::cpu), traded(zero, /*is_gpu=*/false, Offload::none)}) {
      EXPECT_GT(seen.seconds, 0);
      EXPECT_EQ(seen.waited_seconds, seen.seconds);
    }
  }
}

// Between two ranks that share a sequence, over a link without latency.
TrafficSeconds between_two(PlannedStep step, TrafficKind kind, bool is_gpu, double bytes_per_second) {
  step.inputs.device_is_host = !is_gpu;
  HardwareProfile hardware = round_profile(is_gpu);
  hardware.within_machine = {0, bytes_per_second};
  return traffic_of(step_time(step, hardware), kind);
}

// Of either rank at 4096 tokens: 4 D + 10 D a pair, of half of the pairs of 8 heads in 4 layers.
constexpr double kAttention_seconds = 14.0 * 32 * 8 * 4 * (4096.0 * 4096 / 2) / 2 / 5e11;

TEST(StepTime, a_ring_is_hidden_on_a_gpu_and_gathered_keys_are_not) {
  const auto ring = [](bool is_gpu, bool gathers_keys, double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::none, 1, 2);
    step.inputs.gathers_keys = gathers_keys;
    return between_two(step, TrafficKind::ring, is_gpu, bytes_per_second);
  };
  const TrafficSeconds fast = ring(/*is_gpu=*/true, /*gathers_keys=*/false, 1e10);
  EXPECT_GT(fast.seconds, 0);
  EXPECT_EQ(fast.waited_seconds, 0);
  const TrafficSeconds slow = ring(/*is_gpu=*/true, /*gathers_keys=*/false, 1e6);
  EXPECT_NEAR(slow.seconds - slow.waited_seconds, kAttention_seconds, 1e-9);
  for (const TrafficSeconds& seen : {ring(/*is_gpu=*/true, /*gathers_keys=*/true, 1e10),
                                     ring(/*is_gpu=*/false, /*gathers_keys=*/false, 1e10)}) {
    EXPECT_GT(seen.seconds, 0);
    EXPECT_EQ(seen.waited_seconds, seen.seconds);
  }
}

TEST(StepTime, of_head_chunks_a_gpu_waits_for_one_and_for_what_attention_does_not_hide) {
  const auto ulysses = [](bool is_gpu, int head_chunks, double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::none, 2);
    step.inputs.head_chunks = head_chunks;
    return between_two(step, TrafficKind::ulysses, is_gpu, bytes_per_second);
  };
  const TrafficSeconds fast = ulysses(/*is_gpu=*/true, 2, 1e10);
  EXPECT_GT(fast.seconds, 0);
  EXPECT_DOUBLE_EQ(fast.waited_seconds, fast.seconds / 2);
  const TrafficSeconds slow = ulysses(/*is_gpu=*/true, 2, 1e6);
  EXPECT_NEAR(slow.seconds - slow.waited_seconds, kAttention_seconds, 1e-9);
  for (const TrafficSeconds& seen : {ulysses(/*is_gpu=*/true, 1, 1e10), ulysses(/*is_gpu=*/false, 2, 1e10)}) {
    EXPECT_GT(seen.seconds, 0);
    EXPECT_EQ(seen.waited_seconds, seen.seconds);
  }
}

TEST(StepTime, a_host_that_steps_longer_than_forward_goes_is_waited_for) {
  const auto time = [](bool is_gpu, double per_second) {
    HardwareProfile hardware = round_profile(is_gpu);
    hardware.host_optimizer_per_second = per_second;
    return step_time(stepped_on_the_host(is_gpu), hardware);
  };
  for (const bool is_gpu : {true, false})
    EXPECT_NEAR(time(is_gpu, 1e6).seconds - time(is_gpu, 2e6).seconds, kSmallElements / 2e6, 1e-9);
  EXPECT_DOUBLE_EQ(time(/*is_gpu=*/false, 1e6).host_optimizer_waited_seconds, kSmallElements / 1e6);
  EXPECT_EQ(time(/*is_gpu=*/true, 1e12).host_optimizer_waited_seconds, 0);
}

TEST(StepTime, what_no_work_explains_is_added_for_each_micro_batch_and_for_the_step) {
  PlannedStep step = small_step(2048, Recompute::full);
  step.inputs.micro_batches = 4;
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const double explained = step_time(step, hardware).seconds;
  hardware.micro_batch_seconds = 0.5;
  EXPECT_NEAR(step_time(step, hardware).seconds, explained + 2, 1e-9);
  hardware.step_seconds = 0.25;
  EXPECT_NEAR(step_time(step, hardware).seconds, explained + 2.25, 1e-9);
  EXPECT_DOUBLE_EQ(step_time(step, hardware).overhead_seconds, 2.25);
}

TEST(StepTime, mfu_is_of_all_ranks_peak_rate_in_the_precision_of_the_step) {
  PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  hardware.peak_flops_16_bit = 8e12;
  hardware.peak_flops_32_bit = 2e12;
  const double flops = 6 * kSmallParameters * 2048 + 6.0 * 4 * 8 * 32 * 2048 * 2048;  // a rank
  for (const auto& [bytes, peak] : {std::pair{4, 2e12}, {2, 8e12}}) {
    step.inputs.storage_bytes = bytes;
    const StepTime time = step_time(step, hardware);
    EXPECT_NEAR(time.mfu * time.seconds, flops / peak, 1e-12) << bytes;
  }
}

// A link of the network has a tenth of the rate of a machine's links, and a machine as many of them as devices.
TEST(StepTime, what_all_ranks_exchange_goes_over_the_network_where_a_machine_holds_fewer) {
  const auto exchange = [](int zero, TrafficKind kind, int devices_per_machine, double of_network = 1e9,
                           int64_t reduce_bytes = 4) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 8);
    step.inputs.zero = zero;
    step.inputs.reduce_bytes = reduce_bytes;
    HardwareProfile hardware = round_profile(/*is_gpu=*/true);
    hardware.devices_per_machine = devices_per_machine;
    hardware.within_machine = {0, 1e10};
    hardware.across_machines = {0, of_network};
    return traffic_of(step_time(step, hardware), kind);
  };
  for (const auto& [zero, kind] : {std::pair{3, TrafficKind::gathered_parameters},
                                   {3, TrafficKind::summed_gradients},
                                   {1, TrafficKind::traded_parameters}}) {
    const TrafficSeconds across = exchange(zero, kind, 4), within = exchange(zero, kind, 8);
    EXPECT_TRUE(across.crosses_machines) << name_of(kind);
    EXPECT_FALSE(within.crosses_machines) << name_of(kind);
    EXPECT_NEAR(across.seconds / within.seconds, 10. / 4, 1e-9) << name_of(kind);
    EXPECT_NEAR(exchange(zero, kind, 1).seconds / within.seconds, 10, 1e-9) << name_of(kind);
    EXPECT_NEAR(exchange(zero, kind, 4, 1e10).seconds / within.seconds, 1, 1e-9) << name_of(kind);
  }
  // Blocks of 4 of 7 others leave the machine, each over its device's link.
  const TrafficSeconds blocks = exchange(3, TrafficKind::summed_gradients, 4, 1e9, 2);
  EXPECT_NEAR(blocks.seconds, blocks.bytes * 4 / 7 / 1e9, 1e-12);
}

// One unit ahead of the pass that they are for, on the communicator of the sums.
TEST(StepTime, gathers_and_sums_of_a_pass_share_a_link) {
  const auto waited = [](double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = 3;
    step.inputs.device_is_host = false;
    HardwareProfile hardware = round_profile(/*is_gpu=*/true);
    hardware.within_machine = {0, bytes_per_second};
    const StepTime time = step_time(step, hardware);
    return std::pair{traffic_of(time, TrafficKind::gathered_parameters),
                     traffic_of(time, TrafficKind::summed_gradients)};
  };
  const auto [gathers, sums] = waited(1e13);
  EXPECT_EQ(gathers.waited_seconds + sums.waited_seconds, 0);
  const PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
  const double compute = step_time(step, round_profile(/*is_gpu=*/true)).compute_seconds;
  // So slow that each by itself is hidden and both are not.
  const double seconds_at_1 = 1e13 * (gathers.seconds + sums.seconds);
  const auto [late_gathers, late_sums] = waited(seconds_at_1 / (1.1 * compute));
  EXPECT_LT(std::max(late_gathers.seconds, late_sums.seconds), compute);
  EXPECT_GE(late_gathers.waited_seconds + late_sums.waited_seconds, 0.09 * compute);
  EXPECT_GT(late_gathers.waited_seconds, 0);
  EXPECT_GT(late_sums.waited_seconds, 0);
}

TEST(StepTime, one_ranks_parameters_come_from_the_host_beside_each_pass) {
  PlannedStep step = small_step(4096, Recompute::full);
  step.inputs.device_is_host = false;
  step.inputs.zero = 3;
  step.inputs.offload.parameters = Offload::cpu;
  const double share = step_work(step).forward_gathered_share;
  EXPECT_GT(share, 0.3);
  EXPECT_LT(share, 0.6);
}

TEST(StepTime,
     only_the_first_micro_batchs_forward_hides_the_hosts_optimizer_and_with_updates_in_backward_that) {
  PlannedStep step = stepped_on_the_host(/*is_gpu=*/true);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const auto waited = [&] { return step_time(step, hardware).host_optimizer_waited_seconds; };
  hardware.host_optimizer_per_second = 1e6;
  const double of_one = waited();
  EXPECT_GT(of_one, 0);
  step.inputs.micro_batches = 4;
  EXPECT_DOUBLE_EQ(waited(), of_one);
  step.inputs.micro_batches = 1;
  step.inputs.update_in_backward = true;
  EXPECT_LT(waited(), of_one) << "backward is longer than forward";
}

TEST(StepTime, ranks_on_several_machines_go_over_the_network) {
  const PlannedStep step = small_step(4096, Recompute::full, 8);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const double across = step_time(step, hardware).seconds;
  hardware.devices_per_machine = 8;
  EXPECT_GT(across, step_time(step, hardware).seconds);
  hardware.devices_per_machine = 4;
  hardware.across_machines = {};
  EXPECT_THROW(step_time(step, hardware), ConfigError);
}

// Of 12 ranks on machines of 4: two, but not three, ranks of a group share a machine in every group.
TEST(StepTime, a_group_that_does_not_divide_a_machine_goes_over_the_network) {
  const auto ulysses = [](int degree) {
    const PlannedStep step = small_step(4096, Recompute::full, degree, 1, 12 / degree);
    return traffic_of(step_time(step, round_profile(/*is_gpu=*/true)), TrafficKind::ulysses);
  };
  EXPECT_FALSE(ulysses(2).crosses_machines);
  EXPECT_TRUE(ulysses(3).crosses_machines);
  EXPECT_GT(ulysses(3).seconds, 5 * ulysses(2).seconds);
}

TEST(MachineGroups, hold_as_many_ranks_of_a_group_as_counting_them_finds) {
  for (int machine = 1; machine <= 9; ++machine)
    for (int degree = 1; degree <= 30; ++degree)
      for (int groups = 1; groups <= 6; ++groups) {
        int fewest = degree;
        for (int group = 0; group < groups; ++group) {
          std::map<int, int> of_machine;
          for (int rank = group * degree; rank < (group + 1) * degree; ++rank) ++of_machine[rank / machine];
          for (const auto& [index, ranks] : of_machine) fewest = std::min(fewest, ranks);
        }
        EXPECT_EQ(fewest_on_a_machine(groups * degree, degree, machine), fewest)
            << groups << " groups of " << degree << " on machines of " << machine;
      }
}

}  // namespace
}  // namespace trireme::testing
