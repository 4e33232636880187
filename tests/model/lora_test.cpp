// LoRA beside torch's autograd in fp64, its layout, its first values, and its files.
#include "trireme/model/lora.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/adapter_layout.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/make_adapters.h"
#include "trireme/model/unit_weights.h"

#include "tests/support/error_message.h"
#include "tests/support/relative_error.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme::lora_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig model(const char* fixture) {
  return read_model_config(testing::source_folder() / "tests/parity/fixtures" / fixture);
}
ModelLayout layout_of(const char* fixture, const LoraConfig& lora) {
  const ModelConfig config = model(fixture);
  ModelLayout layout = make_model_layout(config);
  layout.adapters = make_adapters(config, layout, lora, {"targets", "whole"});
  return layout;
}
Adapters adapters_of(const char* fixture, const LoraConfig& lora) {
  return layout_of(fixture, lora).adapters;
}

// A unit of one matrix of three parameters (q|k|v), with a bias, adapted in the first and the last.
struct Case {
  static constexpr int64_t kT = 7, kK = 5, kRank = 2;
  const std::vector<int64_t> rows{4, 3, 6};
  UnitSpec unit, adapter_unit;
  Adapters adapters;
  at::Tensor flat, adapter_flat, x = at::randn({kT, kK}, at::kDouble), dy = at::randn({kT, 13}, at::kDouble);

  Case() {
    UnitBuilder build("layer.0", "model.", 2);
    build.matrix(0, {{"q.weight", 4}, {"k.weight", 3}, {"v.weight", 6}}, kK);
    build.vector(1, {{"bias", 13}});
    unit = build.finish();
    UnitBuilder lora("layer.0.lora", "", 3);
    lora.matrix(0, {{"q.lora_A.weight", kRank}, {"v.lora_A.weight", kRank}}, kK);
    lora.matrix(1, {{"q.lora_B.weight", 4}}, kRank);
    lora.matrix(2, {{"v.lora_B.weight", 6}}, kRank);
    adapter_unit = lora.finish();
    adapters = {.units = {adapter_unit},
                .matrices = {{{.slot = 0, .a = 0, .rows = {{0, 4, 1}, {7, 6, 2}}}}},
                .whole = {{}},
                .rank = kRank,
                .scale = 1.5};
    flat = at::randn({unit.elements}, at::kDouble);
    adapter_flat = at::randn({adapter_unit.elements}, at::kDouble);
  }
  UnitWeights weights() const {
    UnitWeights w = bind_weights(flat, unit);
    w.adapt(adapter_flat, adapters, 0);
    return w;
  }
};

TEST(AdaptedLinear, output_input_gradient_and_gradients_are_those_of_autograd) {
  at::manual_seed(1);
  const Case c;
  const UnitWeights w = c.weights();
  const at::Tensor x = c.x.clone().requires_grad_(), a = w.adapter(0).clone().requires_grad_(),
                   b_q = w.adapter(1).clone().requires_grad_(), b_v = w.adapter(2).clone().requires_grad_();
  const at::Tensor of_q = x.mm(a.narrow(0, 0, 2).t()).mm(b_q.t()),
                   of_v = x.mm(a.narrow(0, 2, 2).t()).mm(b_v.t());
  const at::Tensor plain = at::addmm(w[1], x, w[0].t());
  const at::Tensor y = plain + 1.5 * at::cat({of_q, at::zeros({Case::kT, 3}, at::kDouble), of_v}, 1);
  y.backward(c.dy);

  const at::NoGradGuard no_grad;
  constexpr double kExact = 1e-13;
  EXPECT_LT(testing::relative_error(adapted_linear(c.x, w, 0, 1), y), kExact);
  EXPECT_LT(testing::relative_error(adapted_linear_of_rows(c.x, w, 0, 1, 7), y.narrow(1, 0, 7)), kExact);
  at::Tensor into = at::empty_like(y);
  adapted_linear_into(into, c.x, w, 0, 1);
  EXPECT_TRUE(into.equal(adapted_linear(c.x, w, 0, 1)));
  const at::Tensor sum = at::ones_like(y);
  add_adapted_linear(sum, c.x, w, 0, 1);
  EXPECT_LT(testing::relative_error(sum - 1, y), kExact);
  EXPECT_LT(testing::relative_error(adapted_linear_backward(c.dy, w, 0), x.grad()), kExact);
  at::Tensor narrowed = at::empty({Case::kT, Case::kK}, at::kFloat);
  adapted_linear_backward_into(narrowed, c.dy, w, 0);
  EXPECT_TRUE(narrowed.equal(adapted_linear_backward(c.dy, w, 0).to(at::kFloat)));

  // Over two tiles, into memory that holds anything.
  const at::Tensor gradient = at::full({c.adapter_unit.elements}, 7.0, at::kDouble);
  UnitGradients frozen(c.unit, at::kCPU, {gradient, c.adapter_unit, SumState::undefined}, {});
  for (const auto& [begin, count] : {std::pair{0, 4}, {4, 3}})
    add_adapted_linear_gradients(frozen, w, 0, 1, c.dy.narrow(0, begin, count), c.x.narrow(0, begin, count));
  frozen.finish();
  const std::vector<at::Tensor> got = bind_weights(gradient, c.adapter_unit);
  EXPECT_LT(testing::relative_error(got[0], a.grad()), kExact);
  EXPECT_LT(testing::relative_error(got[1], b_q.grad()), kExact);
  EXPECT_LT(testing::relative_error(got[2], b_v.grad()), kExact);
}

// Beside autograd's products in the same precision, of a size that layers have.
TEST(AdaptedLinear, in_16_bits_is_at_most_twice_as_far_off_as_the_plain_products) {
  constexpr int64_t kT = 96, kK = 160, kN = 112, kRank = 8;
  constexpr double kScale = 1.5;
  UnitBuilder build("layer.0", "model.", 2);
  build.matrix(0, {{"q.weight", kN}}, kK);
  const UnitSpec unit = build.finish();
  UnitBuilder lora("layer.0.lora", "", 2);
  lora.matrix(0, {{"q.lora_A.weight", kRank}}, kK);
  lora.matrix(1, {{"q.lora_B.weight", kN}}, kRank);
  const UnitSpec adapter_unit = lora.finish();
  const Adapters adapters{.units = {adapter_unit},
                          .matrices = {{{.slot = 0, .a = 0, .rows = {{0, kN, 1}}}}},
                          .whole = {{}},
                          .rank = kRank,
                          .scale = kScale};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(4);
    const auto draw = [&](at::IntArrayRef sizes, double spread) {
      return (at::randn(sizes) * spread).to(dtype);
    };
    const at::Tensor flat = draw({unit.elements}, 0.08), adapter_flat = draw({adapter_unit.elements}, 0.1),
                     x = draw({kT, kK}, 1), dy = draw({kT, kN}, 1);
    // y, dx, dA, dB by autograd in `precision`.
    const auto by_autograd = [&](at::ScalarType precision) {
      const auto leaf = [&](const at::Tensor& values) {
        return values.to(precision).clone().requires_grad_();
      };
      const std::vector<at::Tensor> w = bind_weights(flat, unit),
                                    ab = bind_weights(adapter_flat, adapter_unit);
      const at::Tensor leaf_x = leaf(x), a = leaf(ab[0]), b = leaf(ab[1]);
      const at::Tensor y = leaf_x.mm(w[0].to(precision).t()) + leaf_x.mm(a.t()).mm(b.t()) * kScale;
      y.backward(dy.to(precision));
      return std::vector{y.detach(), leaf_x.grad(), a.grad(), b.grad()};
    };
    const auto truth = by_autograd(at::kDouble), plain = by_autograd(dtype);

    const at::NoGradGuard no_grad;
    UnitWeights w = bind_weights(flat, unit);
    w.adapt(adapter_flat, adapters, 0);
    const at::Tensor gradient = at::empty({adapter_unit.elements}, at::kFloat);
    UnitGradients frozen(unit, at::kCPU, {gradient, adapter_unit, SumState::undefined}, {});
    add_adapted_linear_gradients(frozen, w, 0, 1, dy, x);
    frozen.finish();
    const std::vector<at::Tensor> sums = bind_weights(gradient, adapter_unit);
    const std::vector ours{adapted_linear(x, w, 0, 1), adapted_linear_backward(dy, w, 0), sums[0], sums[1]};
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto error = [&](const at::Tensor& got) { return (got - truth[i]).norm().item<double>(); };
      EXPECT_LE(error(ours[i]), 2 * error(plain[i])) << i << " in " << dtype;
      EXPECT_GT(error(plain[i]), 0);
    }
  }
}

TEST(AdaptedLinear, is_what_a_merged_matrix_makes) {
  at::manual_seed(2);
  const Case c;
  at::Tensor merged = c.flat.clone();
  merge_adapters(c.unit, merged, c.adapters, 0, c.adapter_flat);
  const UnitWeights of_merged = bind_weights(merged, c.unit);
  EXPECT_LT(
      testing::relative_error(adapted_linear(c.x, of_merged, 0, 1), adapted_linear(c.x, c.weights(), 0, 1)),
      1e-13);
  const std::vector<at::Tensor> before = bind_weights(c.flat, c.unit);
  EXPECT_TRUE(of_merged[0].narrow(0, 4, 3).equal(before[0].narrow(0, 4, 3))) << "k is not adapted";
  EXPECT_TRUE(of_merged[1].equal(before[1]));
}

TEST(Adapters, of_every_layer_have_pefts_names_and_shapes) {
  const Adapters adapters = adapters_of("llama", {.rank = 3, .alpha = 6, .targets = {"all-linear"}});
  ASSERT_EQ(adapters.units.size(), 2U);
  EXPECT_EQ(adapters.scale, 2);
  EXPECT_THAT(adapted_modules(adapters),
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterSpec& spec : adapters.units[1].parameters) shapes[spec.name] = spec.shape;
  EXPECT_EQ(shapes.size(), 14U);
  const std::string prefix = "base_model.model.model.layers.1.";
  EXPECT_THAT(shapes.at(prefix + "self_attn.k_proj.lora_A.weight"), ElementsAre(3, 32));
  EXPECT_THAT(shapes.at(prefix + "self_attn.k_proj.lora_B.weight"), ElementsAre(16, 3));
  EXPECT_THAT(shapes.at(prefix + "mlp.down_proj.lora_A.weight"), ElementsAre(3, 48));
  EXPECT_THAT(shapes.at(prefix + "mlp.down_proj.lora_B.weight"), ElementsAre(32, 3));
}

TEST(Adapters, cost_a_token_four_products_of_the_model_and_six_of_their_own) {
  const ModelLayout whole = make_model_layout(model("llama"));
  const auto of_model = static_cast<double>(whole.matmul_parameter_count());
  EXPECT_EQ(whole.flops_per_token(), 6 * of_model);
  LoraConfig lora{.rank = 2, .alpha = 2, .targets = {"v_proj"}};
  EXPECT_EQ(layout_of("llama", lora).trained_parameter_count(), 2 * 2 * (32 + 16));
  EXPECT_EQ(layout_of("llama", lora).flops_per_token(), 4 * of_model + 6 * 2 * 2 * (32 + 16));
  lora.modules_to_save = {"norm", "embed_tokens"};
  EXPECT_EQ(layout_of("llama", lora).flops_per_token(), 4 * of_model + 6 * 2 * 2 * (32 + 16))
      << "no products";
  lora.modules_to_save = {"lm_head"};
  const ParameterSpec& head = whole.units.back().parameters.back();
  EXPECT_EQ(layout_of("llama", lora).flops_per_token(),
            4 * of_model + 6 * 2 * 2 * (32 + 16) + 2 * static_cast<double>(head.elements));
}

TEST(Adapters, hold_whole_what_modules_to_save_ends_the_name_of) {
  const auto trained = [](const char* fixture, const std::vector<std::string>& modules) {
    std::vector<std::string> names;
    for (const UnitSpec& unit :
         layout_of_whole_parameters(
             adapters_of(fixture, {.rank = 1, .alpha = 1, .targets = {"v_proj"}, .modules_to_save = modules}))
             .units)
      for (const ParameterSpec& spec : unit.parameters) names.push_back(spec.name);
    return names;
  };
  EXPECT_THAT(trained("llama", {}), ::testing::IsEmpty());
  EXPECT_THAT(
      trained("llama", {"embed_tokens", "norm"}),
      ElementsAre("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                  "model.layers.0.post_attention_layernorm.weight", "model.layers.1.input_layernorm.weight",
                  "model.layers.1.post_attention_layernorm.weight", "model.norm.weight"));
  EXPECT_THAT(trained("llama", {"model.norm", "lm_head"}),
              ::testing::UnorderedElementsAre("model.norm.weight", "lm_head.weight"));
  EXPECT_THAT(trained("llama", {"layers.1.input_layernorm"}),
              ElementsAre("model.layers.1.input_layernorm.weight"));
  EXPECT_THAT(trained("gemma3_whole", {"model.language_model.norm"}), ElementsAre("model.norm.weight"));
}

TEST(Adapters, begin_with_the_embedding_only_where_it_is_trained) {
  const auto first = [](const std::vector<std::string>& modules) {
    return adapters_of("llama", {.rank = 1, .alpha = 1, .targets = {"v_proj"}, .modules_to_save = modules});
  };
  EXPECT_EQ(first({"lm_head"}).first_unit, 1);
  EXPECT_EQ(first({"lm_head"}).units.size(), 3U);
  EXPECT_EQ(first({"embed_tokens"}).first_unit, 0);
  EXPECT_EQ(first({"embed_tokens"}).units.size(), 3U);
}

TEST(Adapters, refuse_to_train_whole_what_is_not_there_or_not_built) {
  const auto message = [](const char* fixture, const std::vector<std::string>& modules, bool ties = true) {
    return testing::message_of<ConfigError>([&] {
      adapters_of(fixture, {.rank = 1,
                            .alpha = 1,
                            .targets = {"all-linear"},
                            .modules_to_save = modules,
                            .ties_embedding = ties});
    });
  };
  EXPECT_THAT(message("llama", {"norm", "score"}),
              AllOf(HasSubstr("whole: 'score' means no module"), HasSubstr("embed_tokens")));
  EXPECT_THAT(message("llama", {"q_proj"}), HasSubstr("means model.layers.0.self_attn.q_proj too"));
  EXPECT_THAT(message("qwen2_tied", {"lm_head"}),
              AllOf(HasSubstr("'lm_head' means no module"), HasSubstr("embed_tokens")));
  EXPECT_THAT(message("qwen2_tied", {"embed_tokens"}, /*ties=*/false), HasSubstr("ensure_weight_tying"));
  EXPECT_THAT(message("gemma4_inputs", {"embed_tokens"}), HasSubstr("means model.embed_tokens too"));
  EXPECT_THAT(message("gemma4_inputs", {"norm"}),
              AllOf(HasSubstr("model.per_layer_projection_norm"), HasSubstr("model.norm"),
                    ::testing::Not(HasSubstr(" norm,"))));
  EXPECT_THAT(message("qwen3_moe", {"mlp.gate"}), HasSubstr("mlp.gate too"));
  for (const char* text : {"norm,", "[norm]", ".*norm"})
    EXPECT_THAT(testing::message_of<ConfigError>([&] { lora_modules_to_save(text); }),
                HasSubstr("--lora_modules_to_save"));
  EXPECT_THAT(lora_modules_to_save("norm, embed_tokens,norm"), ElementsAre("embed_tokens", "norm"));
  EXPECT_THAT(lora_modules_to_save(""), ::testing::IsEmpty());
}

// A norm that is trained and one that is not, beside a matrix that is and one that is not.
TEST(UnitGradients, of_a_frozen_unit_are_those_of_what_is_trained_whole) {
  UnitBuilder build("head", "", 4);
  build.matrix(0, {{"kept.weight", 4}}, 3);
  build.vector(1, {{"kept_norm.weight", 3}});
  build.matrix(2, {{"lm_head.weight", 4}}, 3);
  build.vector(3, {{"norm.weight", 3}});
  const UnitSpec unit = build.finish();
  UnitBuilder whole("head.lora", "", 2);
  whole.vector(0, {{"norm.weight", 3}});
  whole.matrix(1, {{"lm_head.weight", 4}}, 3);
  const UnitSpec trained = whole.finish();
  const at::Tensor gradient = at::full({trained.elements}, 7.0), dy = at::randn({5, 4}),
                   x = at::randn({5, 3});
  UnitGradients sums(unit, at::kCPU, {gradient, trained, SumState::undefined}, {{3, 0}, {2, 1}});
  for (int tile = 0; tile < 2; ++tile) {
    sums.add_linear(0, std::nullopt, dy, x);
    sums.to_add(1).add_(1);
    sums.add_linear(2, std::nullopt, dy, x);
    sums.to_add(3).add_(2);
  }
  sums.finish();
  const std::vector<at::Tensor> got = bind_weights(gradient, trained);
  EXPECT_TRUE(got[0].equal(at::full({3}, 4.0)));
  EXPECT_TRUE(at::allclose(got[1], 2 * dy.t().mm(x), 1e-5, 1e-5));
}

TEST(Adapters, of_a_mixture_leave_router_and_experts_out) {
  EXPECT_THAT(adapted_modules(adapters_of("qwen3_moe", {.rank = 1, .alpha = 1, .targets = {"all-linear"}})),
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj"));
}

TEST(Adapters, of_a_mixture_of_one_expert_leave_it_out_too) {
  const auto modules = [](const char* fixture) {
    const std::filesystem::path file =
        testing::source_folder() / "tests/parity/fixtures" / fixture / "config.json";
    Json json = read_json(file);
    json.update({{"num_experts", 1}, {"num_experts_per_tok", 1}, {"top_k_experts", 1}});
    const ModelConfig config = parse_model_config(json, file.string());
    return adapted_modules(make_adapters(config, make_model_layout(config),
                                         {.rank = 1, .alpha = 1, .targets = {"all-linear"}},
                                         {"targets", "whole"}));
  };
  for (const char* fixture : {"qwen3_moe", "qwen3_5_moe", "gemma4_experts"})
    EXPECT_EQ(modules(fixture),
              adapted_modules(adapters_of(fixture, {.rank = 1, .alpha = 1, .targets = {"all-linear"}})))
        << fixture;
}

// By gate_proj, up_proj and down_proj PEFT means the shared expert's, but of a Qwen3-Next the others'.
TEST(Adapters, of_a_shared_expert_are_those_that_peft_means_by_its_names) {
  const auto modules = [](const char* fixture) {
    return adapted_modules(adapters_of(fixture, {.rank = 1, .alpha = 1, .targets = {"all-linear"}}));
  };
  EXPECT_THAT(modules("qwen3_5_moe"),
              ::testing::UnorderedElementsAre("in_proj_qkv", "in_proj_b", "in_proj_a", "in_proj_z",
                                              "out_proj", "q_proj", "k_proj", "v_proj", "o_proj",
                                              "shared_expert_gate", "gate_proj", "up_proj", "down_proj"));
  EXPECT_THAT(modules("qwen2_moe"),
              ::testing::UnorderedElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "shared_expert_gate",
                                              "gate_proj", "up_proj", "down_proj"));
  EXPECT_THAT(modules("qwen3_next"),
              ::testing::UnorderedElementsAre("in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "k_proj",
                                              "v_proj", "o_proj", "shared_expert_gate"));
}

// Of Gemma 4 layers with full attention may have no v_proj.
TEST(Adapters, of_a_module_that_some_layers_lack_are_of_those_that_have_it) {
  const Adapters adapters = adapters_of("gemma4", {.rank = 3, .alpha = 6, .targets = {"v_proj", "o_proj"}});
  ASSERT_EQ(adapters.units.size(), 2u);
  EXPECT_EQ(adapters.matrices[0].size(), 2u);
  EXPECT_EQ(adapters.matrices[1].size(), 1u);
  EXPECT_THAT(adapted_modules(adapters), ::testing::UnorderedElementsAre("v_proj", "o_proj"));
  const Adapters alone = adapters_of("gemma4", {.rank = 3, .alpha = 6, .targets = {"v_proj"}});
  EXPECT_EQ(alone.matrices[0].size(), 1u);
  EXPECT_TRUE(alone.matrices[1].empty());
  EXPECT_EQ(alone.units[1].elements, 0);
}

TEST(Adapters, refuse_modules_that_are_not_there_or_not_adapted_and_models_without_any) {
  const auto message = [](const char* fixture, const std::vector<std::string>& targets) {
    return testing::message_of<ConfigError>(
        [&] { adapters_of(fixture, {.rank = 2, .alpha = 2, .targets = targets}); });
  };
  EXPECT_THAT(message("llama", {"q_proj", "qproj"}),
              AllOf(HasSubstr("LoRA of 'qproj'"), HasSubstr("down_proj"), HasSubstr("all-linear")));
  EXPECT_THAT(message("llama", {"lm_head"}), HasSubstr("'lm_head'"));
  EXPECT_THAT(message("qwen3_moe", {"gate_proj"}), AllOf(HasSubstr("'gate_proj'"), HasSubstr("o_proj")));
  EXPECT_THAT(message("llama", {"layers.1.self_attn.q_proj"}), HasSubstr("of some layers and not of others"));
  EXPECT_THAT(message("llama", {"layers.0.self_attn.k_proj", "layers.1.self_attn.v_proj"}),
              HasSubstr("of some layers and not of others"));
  EXPECT_THAT(message("bert", {"all-linear"}), HasSubstr("built for decoders"));
  for (const char* text : {"q_proj,,v_proj", "q_proj v_proj", "['q_proj']", ".*_proj", "all-linear,q_proj"})
    EXPECT_THAT(testing::message_of<ConfigError>([&] { lora_targets(text); }), HasSubstr("names with commas"))
        << text;
  EXPECT_THAT(lora_targets("q_proj, v_proj"), ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(lora_targets("q_proj,self_attn.v_proj"), ElementsAre("q_proj", "self_attn.v_proj"));
}

TEST(Adapters, begin_uniform_in_a_and_zero_in_b_by_seed_and_name_alone) {
  const Adapters all = adapters_of("llama", {.rank = 8, .alpha = 8, .targets = {"all-linear"}});
  const Adapters some = adapters_of("llama", {.rank = 8, .alpha = 8, .targets = {"o_proj"}});
  const auto values = [](const Adapters& adapters, const std::string& end, uint64_t seed) {
    const UnitSpec& unit = adapters.units[1];
    const at::Tensor flat = initial_adapter_values(unit, seed);
    for (const ParameterSpec& spec : unit.parameters)
      if (spec.name.ends_with(end)) return parameter_view(flat, spec).clone();
    return at::Tensor();
  };
  const at::Tensor a = values(all, "down_proj.lora_A.weight", 3);
  const double bound = 1 / std::sqrt(48.0);
  EXPECT_LE(a.abs().max().item<double>(), bound);
  EXPECT_GT(a.abs().max().item<double>(), 0.95 * bound);
  EXPECT_NEAR(a.std().item<double>(), bound / std::sqrt(3), 0.1 * bound);
  EXPECT_FALSE(a.equal(values(all, "down_proj.lora_A.weight", 4)));
  EXPECT_TRUE(values(all, "o_proj.lora_A.weight", 3).equal(values(some, "o_proj.lora_A.weight", 3)));
  EXPECT_EQ(values(all, "o_proj.lora_B.weight", 3).abs().max().item<double>(), 0);
}

TEST(AdapterFolder, is_read_as_it_was_written_and_asks_for_its_own_rank_and_modules) {
  const testing::TemporaryFolder folder;
  const LoraConfig lora{.rank = 2, .alpha = 5, .rslora = true, .targets = {"v_proj", "up_proj"}};
  const ModelLayout written = layout_of("llama", lora);
  const Adapters& adapters = written.adapters;
  EXPECT_NEAR(adapters.scale, 5 / std::sqrt(2.0), 1e-15);
  const auto values = [&](int number) {
    return initial_adapter_values(adapters.units[static_cast<size_t>(number)], 9);
  };
  write_adapter(folder.path(), written, {.config = lora, .model = "org/model", .whole_type = {}}, values);
  const AdapterFolder read = read_adapter_config(folder.path());
  EXPECT_EQ(read.model, "org/model");
  LoraOptions options;
  options.adapter = folder.path();
  const ModelConfig config = model("llama");
  ModelLayout layout = make_model_layout(config);
  EXPECT_EQ(add_adapters(layout, config, options).scale(), adapters.scale);
  const CheckpointReader reader = open_adapter(folder.path());
  at::Tensor flat = at::ones({layout.trained()[1].elements});
  reader.read_unit(layout.trained()[1], flat);
  EXPECT_TRUE(flat.equal(values(1)));
  options.rank = 4;
  EXPECT_THAT(testing::message_of<ConfigError>([&] { add_adapters(layout, config, options); }),
              HasSubstr("leave --lora_r"));
}

TEST(AdapterFolder,
     of_the_language_model_inside_a_whole_one_has_the_whole_ones_names_and_meets_its_modules_alone) {
  const testing::TemporaryFolder folder;
  const LoraConfig lora{.rank = 2,
                        .alpha = 4,
                        .rslora = false,
                        .targets = {"q_proj", "down_proj"},
                        .modules_to_save = {"model.norm"}};
  const ModelLayout written = layout_of("gemma3_whole", lora);
  const Adapters& adapters = written.adapters;
  const auto values = [&](int number) {
    return initial_adapter_values(adapters.units[static_cast<size_t>(number)], 9);
  };
  write_adapter(folder.path(), written, {.config = lora, .model = "org/model", .whole_type = "gemma3"},
                values);
  const SafetensorsSet weights(folder.path(), kAdapterWeightsFile);
  for (const auto& [name, entry] : weights.files().front()->entries())
    EXPECT_TRUE(name.starts_with("base_model.model.model.language_model.layers.") ||
                name == "base_model.model.model.language_model.norm.weight")
        << name;
  const Json config = read_json(folder.path() / kAdapterConfigFile);
  EXPECT_EQ(config.at("modules_to_save"), Json({"model.language_model.norm"}));
  EXPECT_EQ(config.at("target_modules"), R"(model\.language_model\..*\.(q_proj|down_proj))");
  EXPECT_FALSE(config.contains("whole_model_type"));  // PEFT would not know it

  const AdapterFolder read = read_adapter_config(folder.path());
  EXPECT_THAT(read.config.targets, ::testing::UnorderedElementsAre("q_proj", "down_proj"));
  const CheckpointReader reader = open_adapter(folder.path());
  at::Tensor flat = at::ones({adapters.units[1].elements});
  reader.read_unit(adapters.units[1], flat);
  EXPECT_TRUE(flat.equal(values(1)));
}

// PEFT's target_modules as an expression, such as ".*layers.0.*q_proj".
TEST(AdapterFolder, of_a_module_in_some_layers_alone_says_that_this_is_not_built) {
  const testing::TemporaryFolder folder;
  const ModelLayout layout = layout_of("llama", {.rank = 1, .alpha = 1, .targets = {"q_proj"}});
  const auto specs_of = [&](size_t unit) {
    std::vector<SafetensorsSpec> specs;
    for (const ParameterSpec& spec : layout.adapters.units[unit].parameters)
      specs.push_back({spec.name, "F32", spec.shape});
    return specs;
  };
  SafetensorsWriter writer(folder.path() / kAdapterWeightsFile, specs_of(0));
  const std::vector<float> values(64);
  for (const ParameterSpec& spec : layout.adapters.units[0].parameters)
    writer.write(spec.name, values.data(), spec.elements * static_cast<int64_t>(sizeof(float)));
  writer.finish();
  const CheckpointReader reader = open_adapter(folder.path());
  const ModelLayout files = layout_of_adapter_files(layout);
  EXPECT_THAT(testing::message_of<DataError>([&] { reader.stored(files.units[1].parameters[0]); }),
              AllOf(HasSubstr("layers.1.self_attn.q_proj.lora_A.weight' is missing"),
                    HasSubstr("in some layers and not in others")));
}

// Of a working folder, say.
TEST(AdapterFolder, names_its_model_in_utf_8_whatever_bytes_the_path_has) {
  EXPECT_EQ(name_of_base_model("/a/caf\xe9"), "/a/caf\xef\xbf\xbd");
}

TEST(AdapterFolder, of_a_checkpoint_tells_the_whole_model_that_it_belongs_to) {
  const testing::TemporaryFolder folder;
  const LoraConfig lora{.rank = 2, .alpha = 4, .rslora = false, .targets = {"q_proj"}};
  std::ofstream(folder.path() / kAdapterConfigFile)
      << adapter_config(lora, layout_of("gemma3_whole", lora), "org/model", "gemma3");
  EXPECT_EQ(read_adapter_config(folder.path()).whole_type, "gemma3");
}

// PEFT reads a tied embedding under both names, and ties it where the folder says so.
TEST(AdapterFolder, with_a_tied_embedding_holds_it_twice_and_says_that_it_is_one) {
  const testing::TemporaryFolder folder;
  const LoraConfig lora{
      .rank = 1, .alpha = 1, .targets = {"v_proj"}, .modules_to_save = {"embed_tokens", "norm"}};
  const ModelLayout written = layout_of("qwen2_tied", lora);
  const auto values = [&](int number) {
    return at::rand({written.trained()[static_cast<size_t>(number)].elements});
  };
  write_adapter(folder.path(), written, {.config = lora, .model = "org/model", .whole_type = {}}, values);
  const SafetensorsSet weights(folder.path(), kAdapterWeightsFile);
  EXPECT_NE(weights.find("base_model.model.model.embed_tokens.weight"), nullptr);
  EXPECT_NE(weights.find("base_model.model.lm_head.weight"), nullptr);
  ModelLayout both{.units = {written.trained().front()}};
  at::Tensor words = at::empty({both.units[0].elements}), second = words.clone();
  open_adapter(folder.path()).read_unit(both.units[0], words);
  both.units[0].parameters.back().name = "base_model.model.lm_head.weight";
  open_adapter(folder.path()).read_unit(both.units[0], second);
  EXPECT_TRUE(words.equal(second));
  const CheckpointReader reader = open_adapter(folder.path());
  EXPECT_THAT(reader.unused_names(layout_of_adapter_files(written)), ::testing::IsEmpty());
  LoraOptions options;
  options.adapter = folder.path();
  const ModelConfig config = model("qwen2_tied");
  ModelLayout read = make_model_layout(config);
  EXPECT_EQ(add_adapters(read, config, options).modules_to_save, lora.modules_to_save);
  EXPECT_EQ(read.trained_parameter_count(), written.trained_parameter_count());
  Json says = read_json(folder.path() / kAdapterConfigFile);
  says["ensure_weight_tying"] = false;
  std::ofstream(folder.path() / kAdapterConfigFile) << says;
  EXPECT_THAT(testing::message_of<ConfigError>([&] { add_adapters(read, config, options); }),
              HasSubstr("ensure_weight_tying is false"));
}

TEST(AdapterFolder, of_a_model_with_a_number_more_or_fewer_is_refused) {
  const Json capped = read_json(testing::source_folder() / "tests/parity/fixtures/gemma2/config.json");
  Json uncapped = capped;
  uncapped["final_logit_softcapping"] = nullptr;
  const auto message = [](const Json& trained, const Json& used) {
    const testing::TemporaryFolder folder;
    std::ofstream(folder.path() / "config.json") << trained;
    return testing::message_of<ConfigError>([&] {
      static_cast<void>(with_positions_of_adapter(parse_model_config(used, "config.json"), folder.path()));
    });
  };
  EXPECT_THAT(message(capped, uncapped), HasSubstr("final_logit_softcapping 3.0, and the model has null"));
  EXPECT_THAT(message(uncapped, capped), HasSubstr("final_logit_softcapping null, and the model has 3.0"));
}

TEST(AdapterFolder, that_changes_what_reads_images_or_has_no_matrices_of_its_expression_is_refused) {
  const testing::TemporaryFolder folder;
  const auto message = [&] {
    return testing::message_of<Error>([&] { static_cast<void>(read_adapter_config(folder.path())); });
  };
  std::ofstream(folder.path() / kAdapterConfigFile)
      << Json{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", ".*q_proj"}};
  EXPECT_THAT(message(), AllOf(HasSubstr(".*q_proj"), HasSubstr("there is no adapter_model.safetensors")));
  const std::string name =
      "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.lora_A.weight";
  SafetensorsWriter writer(folder.path() / kAdapterWeightsFile, {{name, "F32", {1}}});
  const float value = 1;
  writer.write(name, &value, sizeof value);
  writer.finish();
  EXPECT_THAT(message(), AllOf(HasSubstr("changes what reads images"), HasSubstr(name)));
}

TEST(AdapterFolder, that_asks_for_what_is_not_built_is_refused_by_name) {
  const testing::TemporaryFolder folder;
  const Json sound = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj"}}};
  const auto message = [&](const Json& more) {
    Json config = sound;
    config.update(more);
    std::ofstream(folder.path() / kAdapterConfigFile) << config;
    const ModelConfig model_config = model("llama");
    ModelLayout layout = make_model_layout(model_config);
    LoraOptions options;
    options.adapter = folder.path();
    return testing::message_of<Error>([&] { add_adapters(layout, model_config, options); });
  };
  EXPECT_THAT(message({{"peft_type", "IA3"}}), HasSubstr("peft_type is 'IA3'"));
  const Json not_built = {{"use_dora", true},
                          {"bias", "all"},
                          {"trainable_token_indices", {3}},
                          {"rank_pattern", {{"q_proj", 4}}},
                          {"layers_to_transform", {0}},
                          {"a_key_of_tomorrow", 3}};
  for (const auto& [key, value] : not_built.items())
    EXPECT_THAT(message({{key, value}}), AllOf(HasSubstr(key), HasSubstr("not built"))) << key;
  EXPECT_THAT(message({{"alpha_pattern", {{".*\\.gate_up_proj", 4}}}}), HasSubstr("changes experts"));
  EXPECT_THAT(message({{"init_lora_weights", "pissa"}}), HasSubstr("changes the model's weights too"));
  EXPECT_THAT(message({{"target_modules", Json::array()}}), HasSubstr("expected a list"));
  EXPECT_THAT(message({{"r", 0}}), HasSubstr("\"r\" is 0"));
  EXPECT_THAT(message({{"r", kMostLoraRank + 1}}), HasSubstr("\"r\" is 16385"));
  EXPECT_THAT(message({{"lora_alpha", 0}}), HasSubstr("lora_alpha is 0; expected a number above 0"));
}

}  // namespace
}  // namespace trireme::lora_test
