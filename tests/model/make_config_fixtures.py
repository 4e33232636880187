#!/usr/bin/env python3
"""Writes tests/model/fixtures/configs.json: what transformers makes of random config.json files of the decoder families:
every parameter's name and shape, each layer's window, the rotary parameters. The output is committed.

    .deps/python/bin/python tests/model/make_config_fixtures.py
"""

import json
import os
import pathlib
import random
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
from hf_reference import names_in_file


DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text")


def draw(rng, family):
    """A random config.json: keys are left out, null or set, as files in the wild have them."""
    heads, key_value_heads = rng.choice([(4, 2), (6, 3), (3, 3), (6, 2), (8, 2), (5, 1)])
    config = {"model_type": family, "num_hidden_layers": rng.choice([2, 3]), "num_attention_heads": heads,
              "hidden_size": heads * rng.choice([8, 16, 32]), "intermediate_size": rng.choice([40, 96]),
              "num_key_value_heads": key_value_heads, "vocab_size": rng.choice([50, 320])}
    maybe = lambda key, *values: config.update({key: rng.choice(values)}) if rng.random() < 0.6 else None
    if heads in (4, 8) and rng.random() < 0.3 and not family.startswith(("gemma", "ministral")) and family not in MIXTURES + DELTA_NETS:
        config["num_key_value_heads"] = None
    maybe("head_dim", 8, 16, 24)
    maybe("tie_word_embeddings", True, False)
    maybe("max_position_embeddings", 128, 4096)
    maybe("rms_norm_eps", 1e-5, 1e-6)
    maybe("eos_token_id", 3, [7, 9], None)
    maybe("bos_token_id", 4, None)
    if family in ("llama", "qwen3"):
        maybe("attention_bias", True, False)
    if family == "llama":
        maybe("mlp_bias", True, False)
    if family == "mistral":
        maybe("sliding_window", None, 17, 300)
    if family in ("qwen2", "qwen3"):
        maybe("use_sliding_window", True, True, False)
        maybe("sliding_window", None, 17, 300)
        maybe("max_window_layers", 0, 1, 2, 28)
        if config.get("use_sliding_window") and config.get("sliding_window", 1) and rng.random() < 0.5:
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"])
                                     for _ in range(config["num_hidden_layers"])]
    if family in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        config["num_experts"] = rng.choice([2, 3, 5])
        config["num_experts_per_tok"] = rng.randint(1, config["num_experts"])
        config["moe_intermediate_size"] = rng.choice([24, 40])
        config["shared_expert_intermediate_size"] = rng.choice([16, 56])
        maybe("output_router_logits", False)
        if family != "qwen3_5_moe_text":
            maybe("norm_topk_prob", True, False)
            maybe("mlp_only_layers", [], None)
        if family == "qwen2_moe":
            maybe("use_sliding_window", False)
    if family in DELTA_NETS:
        keys = rng.choice([1, 2, 3])
        config |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * rng.choice([1, 2]),
                   "linear_key_head_dim": rng.choice([8, 12]), "linear_value_head_dim": rng.choice([8, 6])}
        maybe("linear_conv_kernel_dim", 3, 4)
        maybe("attention_bias", True, False)
        maybe("full_attention_interval", 2, 3)
        maybe("partial_rotary_factor", 0.25, 0.5)
        if rng.random() < 0.4:
            config["layer_types"] = [rng.choice(["full_attention", "linear_attention"])
                                     for _ in range(config["num_hidden_layers"])]
    if family in ("mixtral", "qwen3_moe"):
        experts = rng.choice([2, 3, 5])
        config[rng.choice(["num_experts", "num_local_experts"])] = experts
        config["num_experts_per_tok"] = rng.randint(1, experts)
        maybe("output_router_logits", False)
        maybe("router_aux_loss_coef", 0.01)
        if family == "mixtral":
            maybe("sliding_window", None, 17, 300)
        else:
            config["moe_intermediate_size"] = rng.choice([24, 40])
            maybe("norm_topk_prob", True, False)
            maybe("use_sliding_window", True, False)
            maybe("sliding_window", None, 17)
            maybe("decoder_sparse_step", 1)
            maybe("mlp_only_layers", [], None)
            maybe("attention_bias", True, False)
    if family.startswith("ministral"):
        config["head_dim"] = rng.choice([8, 24])  # transformers' ministral needs it
        maybe("sliding_window", None, 17)
        if family == "ministral":
            if config.get("sliding_window", 1) and rng.random() < 0.5:
                config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"])
                                         for _ in range(config["num_hidden_layers"])]
        else:
            config["rope_parameters"] = {
                "rope_type": rng.choice(["yarn", "linear", "default"]), "rope_theta": rng.choice([10000.0, 1e6]), "factor": 4.0,
                "original_max_position_embeddings": rng.choice([64, 1024]), "llama_4_scaling_beta": rng.choice([0.1, 0.3])}
            if config["rope_parameters"]["rope_type"] == "default":
                del config["rope_parameters"]["factor"]
            return config
    if family.startswith("gemma"):
        config["hidden_size"] = heads * rng.choice([8, 16, 32])
        maybe("pad_token_id", 5, None)
        maybe("attention_bias", True, False)
        if family == "gemma":
            config["hidden_act"] = rng.choice(["gelu", "gelu_pytorch_tanh"])
        else:
            maybe("sliding_window", 17, 300)
            if family == "gemma2":
                maybe("attn_logit_softcapping", 2.0, 50.0, None)
                maybe("final_logit_softcapping", 30.0, None)
            else:
                maybe("sliding_window_pattern", 1, 2, 3)
            maybe("query_pre_attn_scalar", 20, 24)
            if family != "gemma2":
                maybe("rope_local_base_freq", 5000.0)
            if rng.random() < 0.4:
                config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"])
                                         for _ in range(config["num_hidden_layers"])]
            if family != "gemma2" and rng.random() < 0.5:  # the form of transformers 5, which has an object for each type of layer
                config["rope_parameters"] = {"full_attention": {"rope_type": "yarn", "rope_theta": 70000.0, "factor": 4.0},
                                             "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}}
                return config
    maybe("rope_theta", 10000.0, 500000, 1000000.0)
    kind = "rope_type" if family == "gemma3_text" else "type"  # which transformers passes over there
    maybe("rope_scaling", None, {kind: "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0},
          {kind: "dynamic", "factor": 3.0})
    return config


def expected(config_json):
    config = AutoConfig.for_model(**json.loads(json.dumps(config_json)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    windows = []
    for layer in model.model.layers:
        window = getattr(getattr(layer, "self_attn", None), "sliding_window", None)
        if config.model_type in ("mistral", "mixtral", "ministral3"):
            window = config.sliding_window
        if config.model_type == "gemma3_text" and not layer.self_attn.is_sliding:
            window = 0
        windows.append(window or 0)
    first = lambda ids: ids[0] if isinstance(ids, list) else ids
    of_types = config.model_type == "gemma3_text"
    rope = config.rope_parameters["full_attention"] if of_types else config.rope_parameters
    norm = model.model.norm
    is_gemma = config.model_type.startswith("gemma")
    gemma = {"softmax_scale": model.model.layers[0].self_attn.scaling, "pad_token_id": config.pad_token_id} if is_gemma else {}
    if config.model_type == "gemma2":
        gemma |= {"score_cap": config.attn_logit_softcapping or 0, "logit_cap": config.final_logit_softcapping or 0}
    if of_types:
        gemma["sliding_theta"] = config.rope_parameters["sliding_attention"]["rope_theta"]
    if config.model_type in MIXTURES:
        gate = model.model.layers[0].mlp.gate
        experts = {"experts_per_token": gate.top_k, "weights_sum_to_one": getattr(gate, "norm_topk_prob", True)}
    else:
        experts = {}
    return experts | gemma | {
        "shapes": {in_file: list(tensor.shape) for name, parameter in model.named_parameters()
                   for in_file, tensor in names_in_file(config.model_type, name, parameter)},
        "layer_window": windows,
        "rope_type": rope["rope_type"],
        "rope_theta": rope["rope_theta"],
        "original_max_position_embeddings": rope.get("original_max_position_embeddings", config.max_position_embeddings),
        "rms_norm_eps": getattr(norm, "variance_epsilon", None) or norm.eps,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": first(config.eos_token_id),
    }


def main():
    rng = random.Random(11)
    rows = []
    for times, families in ((10, ["llama", "mistral", "qwen2", "qwen3"]), (8, ["gemma", "gemma3_text"]), (6, ["mixtral", "qwen3_moe"]),
                            (6, ["ministral", "ministral3"]), (4, ["qwen2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"]),
                            (10, ["gemma2"])):
        for family in families * times:
            config = draw(rng, family)
            rows.append(json.dumps({"config": config, "expected": expected(config)}))
    out = pathlib.Path(__file__).resolve().parent / "fixtures" / "configs.json"
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{out.name}: {len(rows)} configurations, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
