#!/usr/bin/env python3
"""Writes tests/model/fixtures/configs.json: what transformers makes of random config.json files of the decoder families:
every parameter's name and shape, each layer's window, the rotary parameters. The output is committed.

    .deps/python/bin/python tests/model/make_config_fixtures.py
"""

import json
import os
import pathlib
import random

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def draw(rng, family):
    """A random config.json: keys are left out, null or set, as files in the wild have them."""
    heads, key_value_heads = rng.choice([(4, 2), (6, 3), (3, 3), (6, 2), (8, 2), (5, 1)])
    config = {"model_type": family, "num_hidden_layers": rng.choice([2, 3]), "num_attention_heads": heads,
              "hidden_size": heads * rng.choice([8, 16, 32]), "intermediate_size": rng.choice([40, 96]),
              "num_key_value_heads": key_value_heads, "vocab_size": rng.choice([50, 320])}
    maybe = lambda key, *values: config.update({key: rng.choice(values)}) if rng.random() < 0.6 else None
    if heads in (4, 8) and rng.random() < 0.3:
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
    maybe("rope_theta", 10000.0, 500000, 1000000.0)
    maybe("rope_scaling", None, {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0},
          {"type": "dynamic", "factor": 3.0})
    return config


def expected(config_json):
    config = AutoConfig.for_model(**json.loads(json.dumps(config_json)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    windows = []
    for layer in model.model.layers:
        window = getattr(layer.self_attn, "sliding_window", None)
        if config.model_type == "mistral":
            window = config.sliding_window
        windows.append(window or 0)
    first = lambda ids: ids[0] if isinstance(ids, list) else ids
    return {
        "shapes": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
        "layer_window": windows,
        "rope_type": config.rope_parameters["rope_type"],
        "rope_theta": config.rope_parameters["rope_theta"],
        "original_max_position_embeddings": config.rope_parameters.get("original_max_position_embeddings",
                                                                       config.max_position_embeddings),
        "rms_norm_eps": model.model.norm.variance_epsilon,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": first(config.eos_token_id),
    }


def main():
    rng = random.Random(11)
    rows = []
    for number in range(40):
        config = draw(rng, ["llama", "mistral", "qwen2", "qwen3"][number % 4])
        rows.append(json.dumps({"config": config, "expected": expected(config)}))
    out = pathlib.Path(__file__).resolve().parent / "fixtures" / "configs.json"
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{out.name}: {len(rows)} configurations, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
