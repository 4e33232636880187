// What fills the memory adds up, and text and JSON say what was found.
#include <gtest/gtest.h>

#include "trireme/base/sizes.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/plan/memory_answer_json.h"
#include "trireme/plan/memory_answer_text.h"

#include "tests/plan/llama_3_8b.h"

namespace trireme::testing {
namespace {

int64_t sum_of_categories(const std::vector<CategoryBytes>& categories) {
  int64_t sum = 0;
  for (const CategoryBytes& each : categories) sum += each.bytes;
  return sum;
}

TEST(MemoryShortage, categories_add_up_to_the_forecasts_peak_the_largest_first) {
  for (const Recompute recompute : {Recompute::none, Recompute::full})
    for (const int ulysses : {1, 8}) {
      PlannedStep step = llama_step(131072, ulysses, 8, 3, recompute);
      step.inputs.offload.optimizer = Offload::cpu;
      const MemoryShortage shortage = memory_shortage(step, /*machine_ranks=*/8);
      const MemoryForecast forecast = memory_forecast(step.inputs);
      EXPECT_EQ(sum_of_categories(shortage.device), forecast.peak_total_bytes);
      EXPECT_EQ(sum_of_categories(shortage.host), 8 * forecast.host.total());
      for (const auto* categories : {&shortage.device, &shortage.host})
        EXPECT_TRUE(std::ranges::is_sorted(*categories, std::ranges::greater(), &CategoryBytes::bytes));
      EXPECT_FALSE(shortage.fullest_moment.empty());
    }
}

TEST(MemoryAnswer, text_and_json_have_each_set_with_its_bytes_and_time) {
  const PlannedStep step = llama_step(262144, 4, 8, 2, Recompute::none);
  MemoryError error;
  error.message = "\xff\xfe CUDA";
  error.asked_by = TracebackFrame{"/a\xff.py", 3, "f", "x\xe2\x94", -1, 0};
  const MemoryAnswer answer =
      explain_memory(step, gpu_80gb(), limits_of(step, gpu_80gb(), kGpuLimit_bytes), error);
  const std::string text = memory_answer_text(answer);
  const Json json = to_json(answer);
  EXPECT_NO_THROW(json.dump());
  ASSERT_EQ(json.at("sets").size(), answer.changes.sets.size());
  ASSERT_FALSE(answer.changes.sets.empty());
  for (size_t i = 0; i < answer.changes.sets.size(); ++i) {
    const MemoryChangeSet& set = answer.changes.sets[i];
    EXPECT_NE(text.find(cat(i + 1, ". ", set.flags(step), "\n")), std::string::npos) << text;
    EXPECT_EQ(json["sets"][i]["flags"], set.flags(step));
    EXPECT_EQ(json["sets"][i]["saved_device_bytes"],
              answer.changes.cost.device_bytes - set.cost.device_bytes);
  }
  EXPECT_EQ(json.at("memory").at("device").at(0).at("category"), "activations");
  EXPECT_FALSE(json.at("fits").get<bool>());
  EXPECT_EQ(json.at("error").at("asked_by").at("line"), 3);
  EXPECT_TRUE(json.at("error").at("asked_bytes").is_null());
}

TEST(MemoryAnswer, where_nothing_helps_the_memory_that_would_do_is_told) {
  HardwareProfile hardware = gpu_80gb();
  hardware.host_memory_bytes = int64_t{4} << 30;
  PlannedStep step = llama_step(65536, 8, 8, 3, Recompute::full);
  step.inputs.offload.optimizer = Offload::cpu;
  const MemoryAnswer answer =
      explain_memory(step, hardware, limits_of(step, hardware, kGpuLimit_bytes), {}, {.disk = false});
  ASSERT_TRUE(answer.changes.nearest);
  const std::string text = memory_answer_text(answer),
                    lacking = cat("  ", format_bytes(answer.changes.nearest->cost.host_bytes),
                                  " of a host's memory\n");
  EXPECT_NE(text.find(lacking), std::string::npos) << text;
  EXPECT_EQ(text.find("for a rank's tensors"), std::string::npos) << text;
}

// The guides' ds_config (ZeRO 3, optimizer and parameters in host memory) with whole logits, as DeepSpeed
// makes them: the message tells of something that this configuration does not take here.
TEST(MemoryAnswer, a_run_of_deepspeed_that_would_fit_is_told_so_with_the_tensor_that_was_too_much) {
  PlannedStep step = llama_step(262144, 4, 8, 3, Recompute::full);
  step.inputs.offload.optimizer = step.inputs.offload.parameters = Offload::cpu;
  const MemoryError error = read_memory_error(
      "[rank2]:   File \"/venv/site-packages/transformers/loss/loss_utils.py\", line 55, in ForCausalLMLoss\n"
      "[rank2]:     logits = logits.float()\n"
      "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 31.31 GiB. GPU 2 has a total "
      "capacity of 79.19 GiB of which 21.50 GiB is free. Including non-PyTorch memory, this process has "
      "57.69 "
      "GiB memory in use. Of the allocated memory 55.00 GiB is allocated by PyTorch, and 1.00 GiB is "
      "reserved "
      "by PyTorch but unallocated.",
      "log.txt");
  const MemoryAnswer answer =
      explain_memory(step, gpu_80gb(), limits_of(step, gpu_80gb(), kGpuLimit_bytes), error);
  EXPECT_TRUE(answer.changes.fits());
  const std::string text = memory_answer_text(answer);
  EXPECT_NE(text.find("loss_utils.py:55 in ForCausalLMLoss: logits = logits.float()"), std::string::npos)
      << text;
  EXPECT_NE(text.find("the logits of this rank's 65,536 tokens, 4 bytes a value"), std::string::npos) << text;
  EXPECT_NE(text.find("another program holds more"), std::string::npos) << text;
  EXPECT_NE(text.find("It fits as it is"), std::string::npos) << text;
  EXPECT_EQ(text.find("fragmentation"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme::testing
