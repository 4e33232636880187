#include "tests/engine/memory_cases.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/without_onednn.h"

namespace trireme::testing {
namespace {

// 256 wide, of four heads, with more changes.
Json of_four_layers(Json config, const Json& more) {
  config.update({{"hidden_size", 256},
                 {"head_dim", 64},
                 {"num_hidden_layers", 4},
                 {"vocab_size", 3000},
                 {"max_position_embeddings", 4096}});
  config.update(more);
  return config;
}

}  // namespace

Json grouped_model() {
  return of_four_layers(tiny_llama_config(4, 2), {{"intermediate_size", 640}});
}
Json tied_model() {
  Json config = tiny_llama_config(8, 8);
  config.update({{"model_type", "qwen3"},
                 {"architectures", {"Qwen3ForCausalLM"}},
                 {"hidden_size", 192},
                 {"head_dim", 32},
                 {"intermediate_size", 512},
                 {"num_hidden_layers", 3},
                 {"vocab_size", 5000},
                 {"tie_word_embeddings", true},
                 {"max_position_embeddings", 4096}});
  return config;
}
Json uneven_model() {
  Json config = tiny_llama_config(5, 1);
  config.update({{"model_type", "qwen2"},
                 {"architectures", {"Qwen2ForCausalLM"}},
                 {"hidden_size", 320},
                 {"intermediate_size", 480},
                 {"num_hidden_layers", 4},
                 {"vocab_size", 2000},
                 {"max_position_embeddings", 4096}});
  config.erase("head_dim");
  return config;
}

Json straddling_model() {
  Json config = tiny_llama_config(12, 3);
  config.update({{"hidden_size", 192},
                 {"head_dim", 32},
                 {"intermediate_size", 480},
                 {"num_hidden_layers", 3},
                 {"vocab_size", 2000},
                 {"max_position_embeddings", 4096}});
  return config;
}

Json narrow_model() {
  Json config = tiny_llama_config(4, 2);
  config.update({{"hidden_size", 128},
                 {"head_dim", 32},
                 {"intermediate_size", 352},
                 {"num_hidden_layers", 3},
                 {"vocab_size", 512},
                 {"max_position_embeddings", 4096}});
  return config;
}

Json encoder_model() {
  Json config = tiny_bert_config(4);
  config.update({{"hidden_size", 192},
                 {"intermediate_size", 640},
                 {"num_hidden_layers", 4},
                 {"vocab_size", 3000},
                 {"max_position_embeddings", 2048}});
  return config;
}

Json gemma2_model() {
  return of_four_layers(tiny_gemma2_config(4, 2), {{"intermediate_size", 640}, {"sliding_window", 200}});
}

Json gemma3_model() {
  return of_four_layers(tiny_gemma3_config(4, 2), {{"intermediate_size", 640}, {"sliding_window", 200}});
}

Json gemma4_model() {
  Json config =
      of_four_layers(tiny_gemma4_config(4, 2), {{"intermediate_size", 640}, {"sliding_window", 200}});
  const Json types = config["layer_types"];
  config["layer_types"] = {types[0], types[1], types[0], types[1]};
  return config;
}

Json gemma4_experts_model() {
  Json config = of_four_layers(tiny_gemma4_experts_config(4, 2), {{"intermediate_size", 320},
                                                                  {"moe_intermediate_size", 96},
                                                                  {"num_experts", 8},
                                                                  {"top_k_experts", 3},
                                                                  {"sliding_window", 200}});
  const Json types = config["layer_types"];
  config["layer_types"] = {types[0], types[1], types[0], types[1]};
  return config;
}

Json gemma4_e2b_model() {
  Json config = testing::tiny_gemma4_e2b_config(4, 2);
  const Json full = config["layer_types"][0], sliding = config["layer_types"][1];
  config["layer_types"] = {full, sliding, sliding, full};
  config["num_kv_shared_layers"] = 2;
  config["hidden_size_per_layer_input"] = 64;
  config = of_four_layers(config, {{"intermediate_size", 320}, {"sliding_window", 200}});
  config["vocab_size_per_layer_input"] = config["vocab_size"];
  return config;
}

Json gemma4_e2b_wide_table_model() {
  Json config = gemma4_e2b_model();
  config["hidden_size_per_layer_input"] = 128;
  config["vocab_size"] = config["vocab_size_per_layer_input"] = 4000;
  return config;
}

// What the layers that share keys pass on is as wide as what attention takes.
Json gemma4_e2b_keys_model() {
  Json config = gemma4_e2b_model();
  config.update({{"num_key_value_heads", 4},
                 {"num_global_key_value_heads", nullptr},
                 {"attention_k_eq_v", false},
                 {"head_dim", 64},
                 {"global_head_dim", 128},
                 {"intermediate_size", 64}});
  return config;
}

Json qwen3_5_model() {
  return of_four_layers(tiny_qwen3_5_config(4, 2), {{"intermediate_size", 640},
                                                    {"partial_rotary_factor", 0.25},
                                                    {"linear_key_head_dim", 64},
                                                    {"linear_value_head_dim", 64}});
}

Json mixture_model() {
  return of_four_layers(tiny_mixture_config(4, 2),
                        {{"moe_intermediate_size", 96}, {"num_experts", 8}, {"num_experts_per_tok", 3}});
}

// A shared expert wider than the others of a token, and by a layer of experts alone.
Json qwen3_next_model() {
  return of_four_layers(tiny_qwen3_next_config(4, 2), {{"moe_intermediate_size", 96},
                                                       {"shared_expert_intermediate_size", 640},
                                                       {"partial_rotary_factor", 0.25},
                                                       {"linear_key_head_dim", 64},
                                                       {"linear_value_head_dim", 64}});
}

Json qwen2_moe_model() {
  Json config = mixture_model();
  config["model_type"] = "qwen2_moe";
  config["shared_expert_intermediate_size"] = 480;
  return config;
}

std::vector<MemoryCase> memory_cases() {
  using Change = std::function<void(EngineOptions&)>;
  const auto with = [](std::vector<Change> changes) -> Change {
    return [changes = std::move(changes)](EngineOptions& options) {
      for (const Change& change : changes) change(options);
    };
  };
  const auto lora = [&](std::vector<Change> changes = {}) {
    changes.emplace_back([](EngineOptions& o) { o.lora.rank = 24; });
    return with(std::move(changes));
  };
  const auto whole = [](const char* modules) {
    return [modules](EngineOptions& o) { o.lora.modules_to_save = modules; };
  };
  const auto zero = [](int stage) {
    return [stage](EngineOptions& o) { o.zero = static_cast<ZeroStage>(stage); };
  };
  const auto ring = [](int ranks) { return [ranks](EngineOptions& o) { o.ring = ranks; }; };
  const auto chunks = [](int count) { return [count](EngineOptions& o) { o.head_chunks = count; }; };
  // On these shares of the layers.
  const auto keep = [](double attention, double qkv, double mlp) {
    return [=](EngineOptions& o) {
      o.recompute.policy = Recompute::keep_attention;
      o.recompute.keep_fraction = attention;
      o.recompute.keep_qkv_fraction = qkv;
      o.recompute.keep_mlp_fraction = mlp;
    };
  };
  const auto all_kept = [](EngineOptions& o) { o.recompute.policy = Recompute::none; };
  const auto inputs_kept = [](EngineOptions& o) { o.recompute.policy = Recompute::full; };
  const auto every_second = [](EngineOptions& o) { o.recompute.checkpoint_every = 2; };
  const auto bf16_automatic = [](EngineOptions& o) { o.precision = Precision::bf16; };
  const auto bf16 = [](EngineOptions& o) {
    o.precision = Precision::bf16;
    o.bf16_matmul = Bf16Matmul::fp32;
  };
  const auto bf16_matmuls = [](EngineOptions& o) {
    o.precision = Precision::bf16;
    o.bf16_matmul = Bf16Matmul::native;
  };
  const auto in_backward = [](EngineOptions& o) { o.update_in_backward = true; };
  const auto packed = [](EngineOptions& o) { o.planned_batch.packed = true; };
  // The tiles of the layers are the fullest then, not those of the head.
  const auto few_logits = [](EngineOptions& o) { o.logits_tile_tokens = 16; };
  return {
      {"grouped, 1 rank, LoRA", grouped_model, 1, 1, 1, 1024, lora()},
      {"tied, 2 ranks, LoRA, ZeRO 3, all kept", tied_model, 2, 2, 1, 1024, lora({all_kept, zero(3)})},
      {"tied, 2 ranks, LoRA, embedding and norms whole, ZeRO 3, all kept", tied_model, 2, 2, 1, 1024,
       lora({all_kept, zero(3), whole("embed_tokens,norm")})},
      {"uneven, 4 ranks, LoRA, ZeRO 2, bf16", uneven_model, 4, 4, 1, 1201, lora({zero(2), bf16})},
      {"grouped, 1 rank, LoRA, embedding and head whole, bf16, updates in backward", grouped_model, 1, 1, 1,
       512, lora({bf16, in_backward, whole("embed_tokens,lm_head")})},
      {"grouped, 1 rank, LoRA, bf16, updates in backward", grouped_model, 1, 1, 1, 512,
       lora({bf16, in_backward})},
      {"gemma3, 2 ranks, LoRA, ZeRO 1, layer inputs kept", gemma3_model, 2, 2, 1, 1024,
       lora({inputs_kept, zero(1)})},
      {"mixture, 1 rank, LoRA of attention", mixture_model, 1, 1, 1, 1024, lora()},
      {"grouped, 1 rank", grouped_model, 1, 1, 1, 1024},
      {"grouped, 1 rank, all kept", grouped_model, 1, 1, 2, 512, all_kept},
      {"grouped, 1 rank, attention, q k v, the MLP of half of the layers", grouped_model, 1, 1, 1, 1024,
       keep(1, 1, 0.5)},
      {"tied, 2 ranks, q k v without attention", tied_model, 2, 2, 1, 1024, keep(0, 1, 0)},
      {"uneven, 2 ranks, the MLP without attention, bf16", uneven_model, 2, 2, 1, 1024,
       with({keep(0, 0, 1), bf16})},
      {"tied, 2 ranks, 2 head chunks, q k v on two layers, ZeRO 3", tied_model, 2, 2, 1, 2000,
       with({keep(1, 0.67, 0), chunks(2), zero(3)})},
      {"grouped, ring of 2, q k v, the MLP of half of the layers", grouped_model, 2, 1, 1, 1200,
       with({keep(1, 1, 0.5), ring(2)})},
      {"encoder, 1 rank, the MLP of half of the layers", encoder_model, 1, 1, 1, 1024,
       with({keep(1, 0, 0.5), few_logits})},
      {"grouped, 2 ranks, layer inputs kept", grouped_model, 2, 2, 1, 1100, inputs_kept},
      {"grouped, 2 ranks, inputs of two layers", grouped_model, 2, 2, 1, 1024,
       with({inputs_kept, every_second})},
      {"grouped, 4 ranks, two samples, ZeRO 1", grouped_model, 4, 2, 2, 700, zero(1)},
      {"tied, 1 rank, half of the layers keep attention", tied_model, 1, 1, 1, 1024, keep(0.5, 0, 0)},
      {"tied, 2 ranks, all kept, ZeRO 2", tied_model, 2, 2, 1, 1024, with({all_kept, zero(2)})},
      {"tied, 4 ranks, ZeRO 3", tied_model, 4, 4, 1, 1200, zero(3)},
      {"tied, 2 ranks, bf16 and bf16 states", tied_model, 2, 2, 1, 1024,
       with({zero(1), bf16, [](EngineOptions& o) { o.optimizer.state_dtype = at::kBFloat16; }})},
      {"uneven, 1 rank, updates in backward", uneven_model, 1, 1, 1, 1024, in_backward},
      {"uneven, 2 ranks, ZeRO 3, groups of 2", uneven_model, 2, 2, 1, 1024, with({every_second, zero(3)})},
      {"uneven, 4 ranks, gradients travel in bf16", uneven_model, 4, 4, 1, 1201,
       with({zero(2), [](EngineOptions& o) { o.reduce_dtype = at::kBFloat16; }})},
      {"uneven, 1 rank, bf16 matmuls, SGD", uneven_model, 1, 1, 1, 512,
       with({bf16_matmuls, [](EngineOptions& o) { o.optimizer.kind = &find_optimizer("sgd"); }})},
      {"grouped, ring of 2", grouped_model, 2, 1, 1, 1200, ring(2)},
      {"grouped, ulysses 2 x ring 2, all kept", grouped_model, 4, 2, 1, 1500, with({all_kept, ring(2)})},
      {"tied, ring of 4, layer inputs kept", tied_model, 4, 1, 1, 1500, with({inputs_kept, ring(4)})},
      {"tied, ring of 3, bf16", tied_model, 3, 1, 1, 1500, with({ring(3), bf16})},
      {"grouped, keys gathered from 3", grouped_model, 3, 1, 1, 1500,
       with({ring(3), [](EngineOptions& o) { o.ring_method = RingMethod::gather; }})},
      {"tied, 2 ranks, 4 head chunks", tied_model, 2, 2, 1, 2000, chunks(4)},
      {"tied, 2 ranks, 2 head chunks, layer inputs kept", tied_model, 2, 2, 2, 1000,
       with({inputs_kept, chunks(2)})},
      {"encoder, 1 rank", encoder_model, 1, 1, 1, 1024, few_logits},
      {"encoder, 1 rank, large tiles of the head", encoder_model, 1, 1, 1, 1024},
      {"encoder, 2 ranks, all kept, ZeRO 2", encoder_model, 2, 2, 2, 700,
       with({all_kept, zero(2), few_logits})},
      {"encoder, 2 ranks, inputs of two layers, ZeRO 3", encoder_model, 2, 2, 1, 1100,
       with({inputs_kept, every_second, zero(3)})},
      {"encoder, 1 rank, bf16", encoder_model, 1, 1, 1, 1024, with({bf16, few_logits})},
      {"encoder, 1 rank, bf16 matmuls", encoder_model, 1, 1, 1, 1024, with({bf16_matmuls, few_logits})},
      {"encoder, 1 rank, bf16 matmuls, large tiles of the head", encoder_model, 1, 1, 1, 1024, bf16_matmuls},
      // Narrow, so that the rotary tables are most of their category.
      {"narrow, two packed samples", narrow_model, 1, 1, 2, 2048, packed},
      {"gemma 3, two packed samples over 2 ranks", gemma3_model, 2, 2, 2, 1024, packed},
      {"gemma 2, 2 ranks, all kept, bf16", gemma2_model, 2, 2, 2, 700, with({all_kept, bf16_automatic})},
      {"gemma 3, 1 rank", gemma3_model, 1, 1, 1, 1024, few_logits},
      {"gemma 3, 2 ranks, all kept, ZeRO 2", gemma3_model, 2, 2, 2, 700,
       with({all_kept, zero(2), few_logits})},
      {"gemma 3, 1 rank, the MLP of half of the layers, bf16", gemma3_model, 1, 1, 1, 1024,
       with({keep(1, 0, 0.5), bf16, few_logits})},
      {"gemma 4, 1 rank", gemma4_model, 1, 1, 1, 1024, few_logits},
      {"gemma 4, two packed samples over 2 ranks", gemma4_model, 2, 2, 2, 1024, packed},
      {"gemma 4, 2 ranks, all kept, ZeRO 3", gemma4_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"gemma 4, 1 rank, layer inputs kept, bf16", gemma4_model, 1, 1, 1, 1024,
       with({inputs_kept, bf16, few_logits})},
      {"gemma 4, 2 ranks, LoRA", gemma4_model, 2, 2, 1, 1024, lora({few_logits})},
      {"gemma 4 with experts, 1 rank", gemma4_experts_model, 1, 1, 1, 1024, few_logits},
      {"gemma 4 with experts, 2 ranks, all kept, ZeRO 3", gemma4_experts_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"gemma 4 with experts, 1 rank, layer inputs kept, bf16", gemma4_experts_model, 1, 1, 1, 1024,
       with({inputs_kept, bf16, few_logits})},
      {"gemma 4 with experts, 1 rank, LoRA", gemma4_experts_model, 1, 1, 1, 1024, lora({few_logits})},
      {"gemma 4 E2B, 1 rank", gemma4_e2b_model, 1, 1, 1, 1024, few_logits},
      {"gemma 4 E2B, 1 rank, wide tiles before layers", gemma4_e2b_model, 1, 1, 1, 1024,
       [](EngineOptions& o) { o.tile_tokens = 32; }},
      {"gemma 4 E2B, two packed samples over 2 ranks", gemma4_e2b_model, 2, 2, 2, 1024, packed},
      {"gemma 4 E2B, 2 ranks, all kept, ZeRO 3", gemma4_e2b_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"gemma 4 E2B, 1 rank, layer inputs kept, bf16", gemma4_e2b_model, 1, 1, 1, 1024,
       with({inputs_kept, bf16, few_logits})},
      {"gemma 4 E2B, 1 rank, as many keys as queries, bf16", gemma4_e2b_keys_model, 1, 1, 1, 1024,
       with({inputs_kept, bf16})},
      {"gemma 4 E2B, 2 ranks, LoRA", gemma4_e2b_model, 2, 2, 1, 1024, lora({few_logits})},
      {"qwen 3.5, 1 rank", qwen3_5_model, 1, 1, 1, 1024, few_logits},
      {"qwen 3.5, two packed samples over 2 ranks", qwen3_5_model, 2, 2, 2, 1024, packed},
      {"qwen 3.5, 3 ranks, which share key heads", qwen3_5_model, 3, 3, 1, 1280, few_logits},
      {"qwen 3.5, 2 x 2 ranks, bf16", qwen3_5_model, 4, 2, 1, 1600, with({ring(2), bf16})},
      {"qwen 3.5, 2 ranks, all kept, ZeRO 3", qwen3_5_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"qwen 3.5, 1 rank, inputs of every 2 layers, bf16", qwen3_5_model, 1, 1, 1, 1024,
       with({every_second, bf16, few_logits})},
      {"qwen 3.5, 2 ranks, LoRA", qwen3_5_model, 2, 2, 1, 1024, lora({few_logits})},
      {"qwen 3 next, 1 rank", qwen3_next_model, 1, 1, 1, 1024, few_logits},
      {"qwen 3 next, 2 ranks, all kept, ZeRO 3", qwen3_next_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"qwen 3 next, 1 rank, inputs of every 2 layers, bf16", qwen3_next_model, 1, 1, 1, 1024,
       with({every_second, bf16_automatic, few_logits})},
      {"qwen 3 next, 2 ranks, LoRA", qwen3_next_model, 2, 2, 1, 1024, lora({few_logits})},
      {"shared expert, 1 rank", qwen2_moe_model, 1, 1, 1, 1024, few_logits},
      {"shared expert, 1 rank, the MLP of half of the layers, bf16", qwen2_moe_model, 1, 1, 1, 1024,
       with({keep(1, 0, 0.5), bf16, few_logits})},
      {"mixture, 1 rank", mixture_model, 1, 1, 1, 1024, few_logits},
      {"mixture, 2 ranks, all kept, ZeRO 3", mixture_model, 2, 2, 2, 700,
       with({all_kept, zero(3), few_logits})},
      {"mixture, 1 rank, layer inputs kept", mixture_model, 1, 1, 1, 1100, with({inputs_kept, few_logits})},
      {"mixture, 1 rank, the MLP of half of the layers, bf16", mixture_model, 1, 1, 1, 1024,
       with({keep(1, 0, 0.5), bf16, few_logits})},
      {"mixture, 1 rank, bf16 matmuls", mixture_model, 1, 1, 1, 1024, with({bf16_matmuls, few_logits})},
  };
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the functions own what they hold

std::vector<MeasuredMemory> measure_memory(const MemoryCase& test, int threads, uint64_t steps) {
  const TemporaryFolder folder;
  write_tiny_model(folder.path(), test.config(), /*spread=*/0.15, test.families);
  EngineOptions options;
  options.ulysses = test.ulysses;
  options.tile_tokens = kTile_tokens;
  options.logits_tile_tokens = kLogitsTile_tokens;
  test.change(options);
  if (uses_disk(options.offload)) options.offload.folder = folder.path();

  std::optional<WithoutOneDnn> products_without_workspace;
  if (options.precision != Precision::bf16 || options.bf16_matmul == Bf16Matmul::fp32)
    products_without_workspace.emplace();
  std::vector<MeasuredMemory> of_ranks(static_cast<size_t>(test.ranks));
  run_ranks_as_threads(test.ranks, [&](World& world) {
    at::set_num_threads(threads);
    const auto engine = assemble(world, folder.path(), options, test.families);
    const ModelConfig& config = engine->config();
    const Mesh& mesh = engine->mesh();
    const auto sample = static_cast<uint64_t>(mesh.dp_index);
    std::vector<Documents> documents;
    if (options.planned_batch.packed)
      documents.assign(static_cast<size_t>(test.batch), Documents({0, test.tokens / 3, test.tokens}));
    for (uint64_t step = 0; step < steps; ++step) {
      const TokenBatch batch =
          slice_of_batch(test.batch, config.vocab_size, sample + 10 * step,
                         {test.tokens, options.ulysses, options.ring}, mesh.sp->rank(), documents);
      engine->train_step(
          std::vector<TokenBatch>(static_cast<size_t>(options.planned_batch.micro_batches), batch), 1e-3);
    }
    MeasuredMemory& mine = of_ranks[static_cast<size_t>(mesh.all->rank())];
    mine.state = engine->memory_account()->state();
    mine.inputs = engine->forecast_inputs(test.batch, test.tokens);
    mine.forecast = memory_forecast(mine.inputs);
  });
  return of_ranks;
}

void expect_within(double share, const char* what, int64_t measured, int64_t formula) {
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(formula),
              share * static_cast<double>(formula) + kCrumbs_bytes)
      << what;
}

}  // namespace trireme::testing
