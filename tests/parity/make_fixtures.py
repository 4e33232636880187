#!/usr/bin/env python3
"""Makes the parity fixtures: tiny Hugging Face models with references of loss, logits and every gradient.

    .deps/python/bin/python tests/parity/make_fixtures.py [NAME...]
    .deps/python/bin/python tests/parity/make_fixtures.py --adapters [NAME...]

Each fixtures/NAME/ holds config.json, model.safetensors and reference.safetensors (see tools/hf_reference.py; fp64
eager, rounded to fp32). Weights are drawn large enough that every gradient is far above fp32 noise; this is checked,
as is that fp32 on the same machine agrees with fp64. The output is committed.

adapters/NAME/ is a LoRA adapter of fixtures/NAME, as PEFT saves it, with references of its gradients.
"""

import json
import pathlib
import shutil
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent.parent / "tools"))

import hf_reference  # sets the environment of transformers first
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
QUARTER = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def model(model_type, heads, key_value_heads, head_dim=None, hidden=32, **more):
    config = {"model_type": model_type, "vocab_size": 80, "hidden_size": hidden, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": key_value_heads,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False}
    if head_dim is not None:
        config["head_dim"] = head_dim
    config.update(more)
    return config


def gemma(model_type, key_value_heads, **more):
    return model(model_type, 4, key_value_heads, **{"head_dim": 12, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, **more})


def gemma2(**more):
    """The first layer slides over 23 tokens, the second does not. Scores and logits are near their caps."""
    return gemma("gemma2", 2, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20,
                 **{"sliding_window": 23, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, **more})


def gemma3(**more):
    """The first layer slides over 23 tokens, the second does not."""
    return gemma("gemma3_text", 2, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20,
                 **{"sliding_window": 23, "sliding_window_pattern": 2, **more})


def gemma4(model_type="gemma4_text", **more):
    """The first layer slides over 23 tokens; the second has wider heads. Of published models no layer has embeddings of its own."""
    return gemma(model_type, 2, hidden_activation="gelu_pytorch_tanh",
                 **{"sliding_window": 23, "layer_types": ["sliding_attention", "full_attention"],
                    "hidden_size_per_layer_input": 0, "global_head_dim": 20, **more})


def qwen3_5(model_type="qwen3_5_text", **more):
    """The first layer has a DeltaNet, whose key heads are read by two value heads each; the second has attention."""
    return model(model_type, 4, 2, **{"head_dim": 16, "vocab_size": 64, "intermediate_size": 32, "layer_types": ["linear_attention", "full_attention"],
                                      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
                                      "linear_value_head_dim": 6, **more})


SHARED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12}


def mixture(model_type, experts, per_token, key="num_local_experts", **more):
    """Of two heads, and narrow experts: there are many matrices."""
    return model(model_type, 4, 2, **{key: experts, "num_experts_per_tok": per_token, "intermediate_size": 12,
                                      "rope_parameters": DEFAULT, **more})


def by_type(full, theta=3000.0):
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}


def bert(hidden, heads, intermediate, **more):
    return {"model_type": "bert", "vocab_size": 96, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": 2, "num_attention_heads": heads, "max_position_embeddings": 64, "type_vocab_size": 2,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            "layer_norm_eps": 1e-12, **more}


def whole(model_type, text, vision, **more):
    """A model that reads images too; what does is as small as it can be."""
    return {"model_type": model_type, "text_config": text, "vision_config": vision, **more}


SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 1, "image_size": 8, "patch_size": 4}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 1, "head_dim": 8, "image_size": 8, "patch_size": 4}
QWEN_VISION = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "patch_size": 2, "out_hidden_size": 32}
GEMMA4_VISION = {"model_type": "gemma4_vision", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                 "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "patch_size": 2, "position_embedding_size": 16}
QWEN3_5_VISION = {"model_type": "qwen3_5_vision", **QWEN_VISION, "num_position_embeddings": 16}
GEMMA4_UNIFIED_VISION = {"model_type": "gemma4_unified_vision", "patch_size": 2, "pooling_kernel_size": 1, "mm_embed_dim": 8,
                         "mm_posemb_size": 4, "output_proj_dims": 8}
# As published: positions of pretraining far below those that are reached, and queries scaled behind them.
MINISTRAL3_ROPE = {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                   "original_max_position_embeddings": 16, "max_position_embeddings": 512, "beta_fast": 32.0,
                   "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}

# name: (config.json as written, B, S). Both forms of rotary keys are kept as written here.
CASES = {
    "llama": (model("llama", 4, 2, rope_parameters=DEFAULT), 2, 61),
    "llama_tied": (model("llama", 4, 2, tie_word_embeddings=True, rope_theta=10000.0), 1, 128),
    "llama_biases": (model("llama", 3, 3, hidden=36, attention_bias=True, mlp_bias=True, rope_parameters=DEFAULT), 1, 61),
    "llama_linear_old_form": (model("llama", 6, 3, hidden=36, rope_theta=10000.0,
                                    rope_scaling={"type": "linear", "factor": 4.0}), 1, 61),
    "llama_dynamic": (model("llama", 8, 2, max_position_embeddings=48, rope_parameters=DYNAMIC), 1, 128),
    "llama_dynamic_within": (model("llama", 4, 2, max_position_embeddings=64, rope_parameters=DYNAMIC), 1, 61),
    "llama_llama3": (model("llama", 6, 2, head_dim=8, hidden=36, vocab_size=64, intermediate_size=40, rope_parameters=LLAMA3), 1, 128),
    "llama_yarn_old_form": (model("llama", 4, 2, rope_theta=10000.0, rope_scaling={
        "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 16, "beta_slow": 2}), 2, 61),
    "mistral_window": (model("mistral", 4, 2, head_dim=12, sliding_window=23, rope_parameters=DEFAULT), 2, 61),
    "mistral_window_linear": (model("mistral", 6, 3, head_dim=8, sliding_window=40, rope_parameters=LINEAR), 1, 128),
    "mistral_full": (model("mistral", 3, 3, hidden=36, sliding_window=None, rope_parameters=LLAMA3), 1, 61),
    "qwen2_tied": (model("qwen2", 4, 2, tie_word_embeddings=True, rope_parameters=DEFAULT), 2, 61),
    "qwen2_yarn_window": (model("qwen2", 6, 3, hidden=36, use_sliding_window=True, sliding_window=29,
                                max_window_layers=1, rope_parameters={**YARN, "mscale": 1.2, "mscale_all_dim": 0.7}), 1, 128),
    "qwen3": (model("qwen3", 4, 2, head_dim=12, rope_parameters=DEFAULT), 2, 61),
    "qwen3_dynamic_old_form": (model("qwen3", 6, 2, head_dim=8, attention_bias=True, max_position_embeddings=40,
                                     rope_theta=10000.0, rope_scaling={"rope_type": "dynamic", "factor": 2.0}), 1, 61),
    "qwen3_tied_yarn": (model("qwen3", 8, 2, head_dim=8, tie_word_embeddings=True,
                              rope_parameters={**YARN, "attention_factor": 1.1, "truncate": False}), 1, 128),
    "bert": (bert(hidden=32, heads=4, intermediate=64), 2, 61),
    "llama_padding_id": (model("llama", 4, 2, pad_token_id=11, rope_parameters=DEFAULT), 1, 61),
    "qwen2_tied_padding_id": (model("qwen2", 4, 2, tie_word_embeddings=True, pad_token_id=11, rope_parameters=DEFAULT), 1, 61),
    "gemma": (gemma("gemma", 1, rope_parameters=DEFAULT), 2, 61),
    "gemma_legacy": (gemma("gemma", 4, rope_theta=10000.0, tie_word_embeddings=False, pad_token_id=None,
                           attention_bias=True, hidden_act="gelu"), 1, 61),
    "gemma2": (gemma2(rope_parameters=DEFAULT), 2, 61),
    # No caps, biases, a head of its own, no layer that slides but the last.
    "gemma2_uncapped": (gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True, tie_word_embeddings=False,
                               layer_types=["full_attention", "sliding_attention"], rope_parameters=DEFAULT), 1, 61),
    "gemma3": (gemma3(rope_parameters=by_type(DEFAULT)), 2, 61),
    "gemma3_old_form": (gemma3(rope_theta=50000.0, rope_local_base_freq=3000.0, tie_word_embeddings=False,
                               rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=6,
                               layer_types=["full_attention", "sliding_attention"]), 1, 128),
    "gemma3_yarn": (gemma3(rope_parameters=by_type(YARN)), 1, 128),
    # Of a model with several rotary embeddings no length beside them is read.
    "gemma3_llama3": (gemma3(rope_parameters=by_type(LLAMA3), original_max_position_embeddings=16), 1, 61),
    "gemma3_dynamic": (gemma3(rope_parameters=by_type(DYNAMIC), max_position_embeddings=48), 1, 128),
    "mixtral": (mixture("mixtral", 4, 2), 2, 61),
    "mixtral_window": (mixture("mixtral", 3, 2, sliding_window=23), 1, 61),
    "qwen3_moe": (mixture("qwen3_moe", 5, 3, "num_experts", head_dim=12, moe_intermediate_size=8, intermediate_size=99,
                          norm_topk_prob=True), 2, 61),
    # Weights of the chosen experts do not sum to one; all experts are chosen, so that each token has every gradient.
    "qwen3_moe_all": (mixture("qwen3_moe", 4, 4, "num_experts", moe_intermediate_size=8, tie_word_embeddings=True), 1, 61),
    "qwen3_moe_sparse": (mixture("qwen3_moe", 6, 2, moe_intermediate_size=8, norm_topk_prob=False), 1, 128),
    "ministral": (model("ministral", 4, 2, head_dim=8, sliding_window=23, layer_types=["sliding_attention", "full_attention"],
                        rope_parameters=DEFAULT), 1, 61),
    "ministral3": (model("ministral3", 4, 2, head_dim=12, rope_parameters=MINISTRAL3_ROPE), 2, 61),
    "gemma3_whole": (whole("gemma3", gemma3(rope_parameters=by_type(DEFAULT)), SIGLIP, mm_tokens_per_image=4), 1, 61),
    # A head of its own, of which only the files tell.
    "mistral3_whole": (whole("mistral3", model("mistral", 4, 2, head_dim=12, sliding_window=None, rope_parameters=DEFAULT),
                             PIXTRAL, tie_word_embeddings=False), 1, 61),
    "mistral3_ministral3": (whole("mistral3", model("ministral3", 4, 2, head_dim=12, tie_word_embeddings=True,
                                                    rope_parameters=MINISTRAL3_ROPE), PIXTRAL), 1, 61),
    "qwen2_5_vl": (whole("qwen2_5_vl", model("qwen2_5_vl_text", 4, 2, rope_parameters={
        **DEFAULT, "mrope_section": [1, 1, 2]}), {**QWEN_VISION, "fullatt_block_indexes": [0]}), 1, 61),
    # As published, beside the rest; nothing is said of eps and theta, which are not those of a qwen2.
    "qwen2_vl": ({key: value for key, value in model("qwen2_vl", 4, 2, vision_config={
        "depth": 1, "embed_dim": 8, "hidden_size": 32, "mlp_ratio": 1, "num_heads": 1, "patch_size": 2},
        rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}).items() if key != "rms_norm_eps"}, 1, 61),
    # Nothing is said of theta.
    "qwen3_vl": (whole("qwen3_vl", model("qwen3_vl_text", 4, 2, head_dim=12, rope_parameters={
        "rope_type": "default", "mrope_section": [2, 2, 2], "mrope_interleaved": True}),
        {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}), 1, 61),
    # As published: keys of wide heads are their values too. Nothing is said of rotary embeddings.
    "gemma4": (gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=3.0), 2, 61),
    # Values of their own, biases, stretched positions, as transformers writes it again; the last layer does not slide whatever is said.
    "gemma4_by_layer": (gemma4(layer_types=["sliding_attention"] * 2, global_head_dim=None, attention_bias=True,
                               per_layer_config={"1": {"head_dim": 8, "num_key_value_heads": 4}}, tie_word_embeddings=False,
                               rope_parameters=by_type({"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                                        "rope_theta": 10000.0, "factor": 2.0})), 1, 128),
    # Experts beside an MLP, as in 26B-A4B.
    "gemma4_experts": (gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2,
                              moe_intermediate_size=8, intermediate_size=24, vocab_size=64, rope_parameters=by_type(QUARTER)), 2, 61),
    "gemma4_whole": (whole("gemma4", gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, use_bidirectional_attention="vision",
                                            rope_parameters=by_type(QUARTER)), GEMMA4_VISION, audio_config=None), 1, 61),
    "gemma4_unified": (whole("gemma4_unified", gemma4("gemma4_unified_text", attention_k_eq_v=True, rope_parameters=by_type(QUARTER)),
                             GEMMA4_UNIFIED_VISION, audio_config=None), 1, 61),
    # As published; nothing is said of the part of a head that turns.
    "qwen3_5": (qwen3_5(rope_parameters={**DEFAULT, "mrope_section": [1, 1, 0], "mrope_interleaved": True}), 2, 61),
    # Chunks of the delta rule that follow each other, heads that ranks do not share evenly, biases, stretched positions.
    "qwen3_5_yarn": (qwen3_5(layer_types=None, full_attention_interval=2, attention_bias=True, tie_word_embeddings=True,
                             linear_num_key_heads=1, linear_num_value_heads=3, linear_conv_kernel_dim=3,
                             rope_parameters={**YARN, "partial_rotary_factor": 0.5}), 1, 130),
    "qwen3_5_whole": (whole("qwen3_5", qwen3_5(rope_parameters=DEFAULT), QWEN3_5_VISION), 1, 61),
    # Experts beside one that every token has.
    "qwen2_moe": (mixture("qwen2_moe", 4, 2, "num_experts", **SHARED, intermediate_size=99), 2, 61),
    "qwen3_5_moe": (qwen3_5("qwen3_5_moe_text", rope_parameters=DEFAULT, **SHARED), 2, 61),
    # As published, all experts of a layer in one tensor.
    "qwen3_5_moe_whole": (whole("qwen3_5_moe", qwen3_5("qwen3_5_moe_text", rope_parameters=DEFAULT, **SHARED),
                                {**QWEN3_5_VISION, "model_type": "qwen3_5_moe_vision"}), 1, 61),
    # Projections that lie in the order of key heads; three value heads each.
    "qwen3_next": (qwen3_5("qwen3_next", linear_num_value_heads=6, rope_theta=10000.0, partial_rotary_factor=0.5, norm_topk_prob=False,
                           **{**SHARED, "num_experts": 3}), 1, 130),
    # As E2B: layers are told of their tokens, and the last two take keys of those before, with MLPs twice as wide.
    "gemma4_inputs": (gemma4(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
                             use_double_wide_mlp=True, hidden_size_per_layer_input=10, vocab_size_per_layer_input=44, vocab_size=40,
                             intermediate_size=10, hidden_size=24, head_dim=8, global_head_dim=16, final_logit_softcapping=3.0, rope_parameters=by_type(QUARTER)), 2, 61),
    # The same beside experts; keys that are values, of the first layer for the last two.
    "gemma4_inputs_experts": (gemma4(num_hidden_layers=4, layer_types=["full_attention", "sliding_attention"] + ["full_attention"] * 2,
                                     num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=40, vocab_size=40, hidden_size=24,
                                     attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=3,
                                     top_k_experts=2, moe_intermediate_size=6, intermediate_size=12, head_dim=8, global_head_dim=16,
                                     rope_parameters=by_type(QUARTER)), 1, 61),
}


# Saved as transformers 5 holds them.
JOINED_EXPERTS = ["qwen3_5_moe_whole"]

# name: keys that the model is made by and that its file does not say.
UNWRITTEN = {"mistral3_whole": ["tie_word_embeddings"]}

# name: (lengths of documents, tokens of padding at the end of each row), for packed.safetensors and padded.safetensors
# beside reference.safetensors. Each document is run alone.
PACKED = {
    "llama": ("40,1,5", None),
    "llama_dynamic": ("70,1", None),
    "mistral_window": ("1,44", None),
    "qwen2_tied": ("20,20", None),
    "bert": ("40,1,5", None),
    "qwen3_moe": ("40,1,5", None),
    "gemma2": ("40,1,5", None),
    "gemma3": ("40,1,5", None),
    "gemma3_dynamic": ("70,1", None),
    "ministral3": ("40,1,5", None),
    "gemma4": ("40,1,5", None),
    "gemma4_experts": ("40,1,5", None),
    "gemma4_inputs": ("40,1,5", None),
    "qwen3_5": ("40,1,5", None),
    "qwen3_5_yarn": ("70,1,2,64", None),
    "qwen3_5_moe": ("40,1,5", None),
    "qwen3_next": ("40,1,66", None),
}
PADDED = {
    "llama": ("30", "0,17"),
}


# name: (LoraConfig, lengths of documents of packed.safetensors), of LoRA adapters of these fixtures.
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "llama": (dict(r=3, lora_alpha=5, target_modules=ALL), "40,1,5"),
    "llama_biases": (dict(r=2, lora_alpha=3, use_rslora=True, target_modules=["k_proj", "up_proj", "down_proj"],
                          modules_to_save=["embed_tokens", "norm", "lm_head"]), None),
    "qwen3_dynamic_old_form": (dict(r=5, lora_alpha=4, target_modules=["q_proj", "v_proj", "o_proj"]), None),
    "qwen2_tied": (dict(r=1, lora_alpha=1, target_modules=["v_proj", "gate_proj"], modules_to_save=["embed_tokens"],
                        ensure_weight_tying=True), "20,20"),
    "gemma2": (dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "down_proj"],
                    modules_to_save=["embed_tokens", "norm"], ensure_weight_tying=True), None),
    "gemma3": (dict(r=4, lora_alpha=8, target_modules=ALL), "40,1,5"),
    "qwen3_moe": (dict(r=2, lora_alpha=2, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), None),
    "gemma4": (dict(r=3, lora_alpha=6, target_modules=ALL), "40,1,5"),  # half of its layers have no v_proj
    "gemma4_experts": (dict(r=2, lora_alpha=3, target_modules=ALL), None),
    "qwen3_5": (dict(r=3, lora_alpha=6, target_modules=[*ALL, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"],
                     modules_to_save=["norm"]), None),
    "qwen3_5_yarn": (dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), None),  # of one layer alone
    # Of the expert that every token has. Of qwen3_next PEFT means the other experts by these names.
    "qwen2_moe": (dict(r=2, lora_alpha=3, target_modules="all-linear", modules_to_save=["model.norm", "lm_head"]), None),
    "qwen3_5_moe": (dict(r=2, lora_alpha=3, target_modules=["gate_proj", "up_proj", "down_proj", "shared_expert_gate", "out_proj"]), None),
    "qwen3_next": (dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate"]), None),
    "gemma4_inputs": (dict(r=2, lora_alpha=3, target_modules=[*ALL, "per_layer_input_gate", "per_layer_projection"]), None),
}


def draw_weights(net, seed):
    """Norms multiply by about 1. Activations of order one everywhere and sharp attention, so that no gradient is near zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                adds_one = net.config.model_type.startswith(("gemma", "qwen3_5", "qwen3_next")) and not net.config.model_type.startswith("gemma4")
                one = 0 if adds_one and not name.endswith("linear_attn.norm.weight") else 1
                parameter.copy_(one + 0.2 * noise if name.endswith(("weight", "scale")) else 0.5 * noise)
            elif "embed" in name:
                parameter.copy_(0.6 * noise)
            else:
                gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "query", "key")) else 1.2
                parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)
        for name, buffer in net.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def relative_error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def check(name, expected, model_fp32):
    got = hf_reference.reference(model_fp32, expected["input_ids"], expected["labels"])
    worst = 0.0
    for key, tensor in expected.items():
        if tensor.dtype != torch.float32:
            continue
        assert torch.isfinite(tensor).all(), f"{name}: {key} is not finite"
        largest = tensor.abs().max().item()
        if key.endswith("attention.self.key.bias"):
            # It adds the same to all scores of a query, which softmax does not see: rounding is all that is left.
            assert largest < 1e-12, f"{name}: {key} has a gradient of {largest:.2e}"
            continue
        assert largest > 2e-3, f"{name}: the largest entry of {key} is only {largest:.2e}"
        rows = tensor.reshape(-1, tensor.shape[-1])
        # (GELU may switch a row of BERT's first MLP matrix off.)
        if key.endswith(("_proj.weight", "query.weight", "key.weight", "value.weight", "output.dense.weight")):
            assert (rows.abs().amax(1) > 1e-4 * largest).all(), f"{name}: {key} has a row of no gradient"
        error = relative_error(got[key], tensor)
        assert error < 2e-5, f"{name}: fp32 differs from fp64 by {error:.1e} of the largest entry of {key}"
        worst = max(worst, error)
    return worst


def make(name, seed):
    config, batch, seq = CASES[name]
    out = here / "fixtures" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    loaded = AutoConfig.from_pretrained(out)
    net = hf_reference.auto_class(loaded).from_config(loaded, dtype=torch.float32)
    draw_weights(net, seed)
    net.save_pretrained(out, save_original_format=name not in JOINED_EXPERTS)
    # save_pretrained rewrites the configuration in today's form; the fixture keeps the one above.
    (out / "generation_config.json").unlink(missing_ok=True)
    written = {key: value for key, value in config.items() if key not in UNWRITTEN.get(name, ())}
    (out / "config.json").write_text(json.dumps({"architectures": [type(net).__name__], **written}, indent=2) + "\n")

    load = lambda: hf_reference.load(out)
    input_ids, labels = hf_reference.draw_batch(net.config, batch, seq, seed + 1)
    tensors = hf_reference.reference(hf_reference.to_float64(load()), input_ids, labels)
    worst = check(name, tensors, load())
    save_file(tensors, out / "reference.safetensors", metadata={"format": "pt"})
    sizes = sum(file.stat().st_size for file in out.iterdir())
    assert sizes < 250_000, f"{name}: {sizes} bytes"
    print(f"{name}: {sizes / 1000:.0f} kB, loss {tensors['loss'].item():.3f}, fp32 within {worst:.1e}")
    return sizes


def make_packed(name, file, documents, padding, seed):
    out = here / "fixtures" / name
    net = hf_reference.load(out)
    batch, seq = CASES[name][1:]
    input_ids, labels = hf_reference.draw_batch(net.config, batch, seq, seed)
    pieces = hf_reference.cut_pieces(documents, padding, batch, seq)
    tensors = hf_reference.packed_reference(hf_reference.to_float64(net), input_ids, labels, pieces)
    save_file(tensors, out / file, metadata={"format": "pt"})
    print(f"{name}/{file}: {len(pieces)} documents, loss {tensors['loss'].item():.3f}")


def make_adapter(name, seed):
    from peft import LoraConfig, get_peft_model

    lora, documents = ADAPTERS[name]
    model, out = here / "fixtures" / name, here / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(seed)
    net = get_peft_model(hf_reference.load(model), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
    with torch.no_grad():
        for parameter_name, parameter in net.named_parameters():
            if parameter.requires_grad and ".modules_to_save." in parameter_name:
                parameter.add_(0.1 * torch.randn(parameter.shape))
            elif parameter.requires_grad:
                parameter.copy_(0.6 * torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    net.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name  # not a path of this machine
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    load = lambda: hf_reference.with_adapter(hf_reference.load(model), out)
    batch, seq = CASES[name][1:]
    input_ids, labels = hf_reference.draw_batch(net.config, batch, seq, seed + 1)
    tensors = hf_reference.reference(hf_reference.to_float64(load()), input_ids, labels)
    worst = check(name, tensors, load())
    save_file(tensors, out / "reference.safetensors", metadata={"format": "pt"})
    if documents:
        pieces = hf_reference.cut_pieces(documents, None, batch, seq)
        packed = hf_reference.packed_reference(hf_reference.to_float64(load()), input_ids, labels, pieces)
        save_file(packed, out / "packed.safetensors", metadata={"format": "pt"})
    print(f"adapter of {name}: {len(tensors) - 4} gradients, loss {tensors['loss'].item():.3f}, fp32 within {worst:.1e}")


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--adapters"]:
        for name in sys.argv[2:] or list(ADAPTERS):
            make_adapter(name, 900 + list(ADAPTERS).index(name))
        return
    names = sys.argv[1:] or list(CASES)
    seed = {name: 100 + 7 * list(CASES).index(name) for name in names}
    total = sum(make(name, seed[name]) for name in names)
    print(f"{len(names)} fixtures, {total / 1e6:.2f} MB")
    for file, cases, more in (("packed.safetensors", PACKED, 2), ("padded.safetensors", PADDED, 3)):
        for name in names:
            if name in cases:
                make_packed(name, file, *cases[name], seed[name] + more)


if __name__ == "__main__":
    main()
