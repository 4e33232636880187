// What ALST and the Hugging Face blog published of DeepSpeed with Transformers: lengths, memory, times. Each
// point with the settings of its recipe, and whether it was looked at while the inventory was made.
#pragma once

#include <string>
#include <vector>

#include "bench/incumbents/incumbent_time.h"
#include "tests/plan/llama_3_8b.h"

namespace trireme::testing {

inline ModelSizes qwen3_4b() {
  return {.layers = 36,
          .hidden = 2560,
          .intermediate = 9728,
          .mlp_kept_width = 2 * 9728,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 151936,
          .qk_norm = true,
          .tied = true};
}
inline ModelSizes qwen3_32b() {
  return {.layers = 64,
          .hidden = 5120,
          .intermediate = 25600,
          .mlp_kept_width = 2 * 25600,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 151936,
          .qk_norm = true};
}
inline ModelSizes llama_70b() {
  return {.layers = 80,
          .hidden = 8192,
          .intermediate = 28672,
          .mlp_kept_width = 2 * 28672,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 128256};
}

// "GPU 0 has a total capacity of": PyTorch's out-of-memory messages on these devices.
inline constexpr int64_t kGibibyte = int64_t{1} << 30;
inline constexpr int64_t kH100_bytes = static_cast<int64_t>(79.1 * kGibibyte);
inline constexpr int64_t kH200_bytes = static_cast<int64_t>(139.8 * kGibibyte);

// ALST's switches, one after the other. ArcticTraining's H200 recipes came with Liger-Kernel 0.6.1 (its
// commit f274093), the H100 recipes before. Its H100 recipes of 8B have `type: liger` in every rung but the
// first, and Liger's fused loss also where a sample is shared (sft_trainer.py loss, liger_factory.py: "0.5.9,
// shift_labels support").
inline IncumbentPolicy alst(int features, bool one_gpu, bool h200 = false) {
  IncumbentPolicy policy;
  policy.liger_kernels = features >= 1;
  policy.offload_activations = features >= 2;
  policy.tiled_mlp = features >= 3;
  policy.offload_parameters = one_gpu;
  policy.flash = h200 ? FlashAttention::v3 : FlashAttention::v2;
  policy.indices_32_bit = !h200;
  return policy;
}
// TRL's examples/accelerate_configs/alst_ulysses_4gpu.yaml, which the blog names: no offload. Its text speaks
// of the optimizer's; its 76.4 GB on one GPU hold 16 bytes a parameter, so it cannot have been on.
inline IncumbentRun blog_run(int64_t tokens) {
  IncumbentRun run{qwen3_4b(), 4, 4, tokens, {}};
  run.policy.offload_optimizer = false;
  return run;
}

// found_later: when the inventory stood; rules changed while the point was known.
enum class Seen : uint8_t { looked_at, held_out, found_later };

struct PublishedLength {
  std::string name;
  IncumbentRun run;  // tokens: what was published
  int64_t device_bytes;
  Seen seen;
  std::string source;
  std::string note;    // why it misses 15 %; empty: it does not
  std::string longer;  // what the recipes' comments say of longer samples: ArcticTraining 6b868e7 and b8013b9
};

inline std::vector<PublishedLength> published_lengths() {
  using enum Seen;
  const ModelSizes llama = llama_3_8b(), qwen = qwen3_32b();
  // run-h100-sp8-llama-8b-yes-mlp.yml: "attn_implementation: sdpa"; the other recipes have flash_attention_2.
  IncumbentPolicy tiled = alst(1, false);
  tiled.tiled_mlp = true;
  tiled.flash = FlashAttention::torch_sdpa;
  const std::string table = "ALST, table 1", recipes = "ArcticTraining, run-h200-sp1-llama-8b-*.yml";
  return {
      {"8B, one H200, Transformers",
       {llama, 1, 1, 65'000, alst(0, true, true)},
       kH200_bytes,
       looked_at,
       recipes,
       "",
       "70,000: cache flushes"},
      {"+ Liger-Kernel",
       {llama, 1, 1, 300'000, alst(1, true, true)},
       kH200_bytes,
       looked_at,
       recipes,
       "",
       "325,000: flushes; 350,000: out of memory"},
      {"+ activations offloaded",
       {llama, 1, 1, 650'000, alst(2, true, true)},
       kH200_bytes,
       looked_at,
       recipes,
       "",
       "700,000: flushes; 800,000: out of memory"},
      {"+ TiledMLP", {llama, 1, 1, 1'200'000, alst(3, true, true)}, kH200_bytes, looked_at, recipes, "", ""},
      {"8B, one H100, Transformers",
       {llama, 1, 1, 32'000, alst(0, true)},
       kH100_bytes,
       held_out,
       "ALST, table 2",
       "",
       "36,000: close to it"},
      {"the same, by its recipe",
       {llama, 1, 1, 36'000, alst(0, true)},
       kH100_bytes,
       held_out,
       "ArcticTraining, run-h100-sp1-llama-8b-baseline.yml: \"close to oom\"",
       "",
       ""},
      {"+ all",
       {llama, 1, 1, 500'000, alst(3, true)},
       kH100_bytes,
       looked_at,
       "ALST, table 2",
       "",
       "555,000: an illegal memory access"},
      {"8B, 8 x H100, Transformers",
       {llama, 8, 1, 32'000, alst(0, false)},
       kH100_bytes,
       held_out,
       table,
       "",
       ""},
      {"+ Liger-Kernel", {llama, 8, 1, 160'000, alst(1, false)}, kH100_bytes, held_out, table, "", ""},
      {"+ Ulysses",
       {llama, 8, 8, 1'100'000, alst(1, false)},
       kH100_bytes,
       held_out,
       table,
       "",
       "1,200,000: flushes; 1,800,000: out of memory"},
      {"+ TiledMLP",
       {llama, 8, 8, 1'200'000, tiled},
       kH100_bytes,
       held_out,
       table,
       "no length between it and 1,500,000 was tried, see below",
       "1,500,000: flushes; 2,000,000: out of memory"},
      {"or + activations offloaded",
       {llama, 8, 8, 2'400'000, alst(2, false)},
       kH100_bytes,
       held_out,
       table,
       "",
       "2,500,000: close to it; 3,000,000: out of memory"},
      {"+ all",
       {llama, 8, 8, 3'700'000, alst(3, false)},
       kH100_bytes,
       held_out,
       table,
       "",
       "3,800,000 stands in its recipe"},
      {"8B, 16 x H100, all",
       {llama, 16, 16, 8'000'000, alst(3, false)},
       kH100_bytes,
       held_out,
       "ArcticTraining, run-h100-sp16-llama-8b.yml: \"close to oom\"",
       "",
       ""},
      {"8B, 32 x H100, all",
       {llama, 32, 32, 15'000'000, alst(3, false)},
       kH100_bytes,
       held_out,
       "ALST, table 4",
       "",
       "16,000,000: out of memory"},
      {"Qwen3-32B, one H100, all",
       {qwen, 1, 1, 230'000, alst(3, true)},
       kH100_bytes,
       held_out,
       "ArcticTraining, run-h100-sp1-qwen3-32b.yml",
       "",
       "260,000: the loss is nan; 400,000: out of memory"},
      {"Qwen3-32B, 16 x H100, all",
       {qwen, 16, 16, 4'000'000, alst(3, false)},
       kH100_bytes,
       held_out,
       "ArcticTraining, run-h100-sp16-qwen3-32b.yml",
       "",
       "4,500,000: breaks; 8,000,000: out of memory"},
  };
}

enum class MemoryKind : uint8_t { device, held };  // nvidia-smi's, or PyTorch's allocated

struct PublishedMemory {
  std::string name;
  IncumbentRun run;
  MemoryKind kind;
  double gibibytes;
  Seen seen;
  std::string source;
  std::string note;  // why it misses 16 %; empty: it does not
};

inline std::vector<PublishedMemory> published_memory() {
  using enum Seen;
  using enum MemoryKind;
  const ModelSizes llama = llama_3_8b(), large = llama_70b(), qwen = qwen3_32b();
  const std::string recipe = "a comment in ArcticTraining's recipe", blog = "Hugging Face blog, ulysses-sp";
  const std::string older = "the same recipe's older comments";
  const std::string machines = "NCCL over several machines is not counted, see below";
  const std::string unknown = "not explained, see below";
  IncumbentRun alone = blog_run(8192);
  alone.ranks = alone.sequence_ranks = 1;
  const auto one = [&](const ModelSizes& model, int64_t tokens, int features, bool h200) {
    return IncumbentRun{model, 1, 1, tokens, alst(features, true, h200)};
  };
  const auto all = [&](const ModelSizes& model, int ranks, int64_t tokens) {
    return IncumbentRun{model, ranks, ranks, tokens, alst(3, false)};
  };
  return {
      {"8B, one H200, 50K", one(llama, 50'000, 0, true), device, 124.47, found_later, older, ""},
      {"8B, one H200, 60K", one(llama, 60'000, 0, true), device, 126.79, found_later, older, ""},
      {"8B, one H200, 65K", one(llama, 65'000, 0, true), device, 137.36, looked_at, recipe, ""},
      {"8B, one H200, 200K", one(llama, 200'000, 1, true), device, 93.28, found_later, older, ""},
      {"8B, one H200, 300K", one(llama, 300'000, 1, true), device, 134.96, looked_at, recipe, ""},
      {"8B, one H200, 600K", one(llama, 600'000, 2, true), device, 118.06, found_later, older, ""},
      {"8B, one H200, 650K", one(llama, 650'000, 2, true), device, 126.81, looked_at, recipe, ""},
      {"8B, one H200, 1.2M", one(llama, 1'200'000, 3, true), device, 136.15, looked_at, recipe, ""},
      {"8B, one H100, 32K", one(llama, 32'000, 0, false), device, 71.91, held_out, recipe, ""},
      {"8B, 32 x H100, 32K", {llama, 32, 1, 32'000, alst(0, false)}, device, 71.62, found_later, older, ""},
      {"8B, 32 x H100, 14M", all(llama, 32, 14'000'000), device, 74.51, found_later, older, unknown},
      {"8B, 32 x H100, 15M", all(llama, 32, 15'000'000), device, 78.49, found_later, older, unknown},
      {"70B, 16 x H100, 1.5M", all(large, 16, 1'500'000), device, 44.04, found_later, older, ""},
      {"70B, 16 x H100, 2M", all(large, 16, 2'000'000), device, 50.65, found_later, older, ""},
      {"70B, 32 x H100, 4M", all(large, 32, 4'000'000), device, 47.70, held_out, recipe, ""},
      {"70B, 64 x H100, 8M", all(large, 64, 8'000'000), device, 46.41, found_later, older, machines},
      {"70B, 64 x H100, 10M", all(large, 64, 10'000'000), device, 53.83, held_out, recipe, ""},
      {"70B, 64 x H100, 11M", all(large, 64, 11'000'000), device, 57.54, found_later, older, ""},
      {"Qwen3-32B, one H100, 200K", one(qwen, 200'000, 3, false), device, 56.13, found_later, older, ""},
      {"Qwen3-32B, one H100, 260K", one(qwen, 260'000, 3, false), device, 68.93, found_later, older, ""},
      {"Qwen3-32B, 8 x H100, 1.5M", all(qwen, 8, 1'500'000), device, 64.99, found_later, older, ""},
      {"Qwen3-32B, 32 x H100, 5M", all(qwen, 32, 5'000'000), device, 53.46, found_later, older, ""},
      {"Qwen3-32B, 32 x H100, 7M", all(qwen, 32, 7'000'000), device, 71.55, found_later, recipe,
       machines + "; with PyTorch 2.4"},
      {"Qwen3-32B, 64 x H100, 15M", all(qwen, 64, 15'000'000), device, 71.00, held_out, recipe, machines},
      {"Qwen3-32B, 64 x H100, 16M", all(qwen, 64, 16'000'000), device, 74.79, found_later, older, machines},
      {"Qwen3-4B, 4 x H100, 8K", blog_run(8192), held, 22.8, looked_at, blog, ""},
      {"Qwen3-4B, 4 x H100, 32K", blog_run(32768), held, 35.0, looked_at, blog, ""},
      {"Qwen3-4B, 4 x H100, 64K", blog_run(65536), held, 50.5, looked_at, blog, ""},
      {"Qwen3-4B, 4 x H100, 96K", blog_run(98304), held, 66.0, held_out, blog, ""},
      {"Qwen3-4B, one H100, 8K", alone, held, 76.4, looked_at, blog, ""},
  };
}

struct PublishedTime {
  std::string name;
  IncumbentRun run;
  int64_t accumulation;
  double tokens_per_second;  // of all ranks
  std::string source;
};

// Long sequences: what a step waits for beside attention and products is not counted.
inline std::vector<PublishedTime> published_times() {
  const ModelSizes llama = llama_3_8b();
  return {
      {"Qwen3-4B, 4 x H100, 64K", blog_run(65536), 8, 13396, "Hugging Face blog, ulysses-sp"},
      {"8B, one H100, 500K", {llama, 1, 1, 500'000, alst(3, true)}, 1, 500e3 / 1010, "ALST, table 2"},
      {"8B, 8 x H100, 1.1M", {llama, 8, 8, 1'100'000, alst(1, false)}, 1, 1.1e6 / 564, "ALST, table 1"},
      {"8B, 8 x H100, 2.4M", {llama, 8, 8, 2'400'000, alst(2, false)}, 1, 2.4e6 / 2610, "ALST, table 1"},
      {"8B, 8 x H100, 3.7M", {llama, 8, 8, 3'700'000, alst(3, false)}, 1, 3.7e6 / 6455, "ALST, table 1"},
      {"8B, 32 x H100, 15M", {llama, 32, 32, 15'000'000, alst(3, false)}, 1, 15e6 / 26709, "ALST, table 4"},
  };
}

// An H100 for those times. Products: the best shape of ml-engineering's matmul table; memory: 0.83 of the
// data sheet's 3.35 TB/s, as streaming kernels reach; NVLink: NCCL's 370 of 450 GB/s; PCIe 5: 0.8 of 63 GB/s;
// the host: DeepSpeed's CPU Adam, 8e9 parameters in 2.41 s (ZeRO-Offload, arXiv 2101.06840, table 4), a
// machine of eight.
inline constexpr double kH100Streamed = 0.83 * 3.35e12;
inline HardwareProfile h100_rates() {
  HardwareProfile profile;
  profile.name = "h100 of published rates";
  profile.rates_16_bit[WorkKind::matmul] = {{{0, 0, 794.5e12}}};
  profile.rates_16_bit[WorkKind::weight_gradient] = {{{0, 0, 794.5e12}}};
  profile.within_machine = {20e-6, 370e9};
  profile.to_host = {20e-6, 0.8 * 63e9};
  profile.host_optimizer_per_second = 8e9 / 2.41 / 8;
  return profile;
}

inline double relative_miss(double model, double published) {
  return model / published - 1;
}

}  // namespace trireme::testing
