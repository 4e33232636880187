#!/usr/bin/env python3
"""Writes tests/model/fixtures/rope_tables.json: rotary tables as transformers computes them, for every rope kind in
both forms of config.json. The output is committed; the C++ test reads it.

    .deps/python/bin/python tests/model/make_rope_fixtures.py
"""

import json
import os
import pathlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

BASE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 4096}

# name: (keys of config.json, the sequence's last position)
CASES = {
    "default": ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 1048575),
    "nothing_said": ({}, 9000),
    "theta_beside": ({"rope_theta": 1000000.0}, 300000),
    "theta_beside_and_null_scaling": ({"rope_theta": 500000, "rope_scaling": None}, 9000),
    "theta_inside_wins": ({"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}, 9000),
    "scaling_wins_over_parameters": ({"rope_theta": 20000.0, "rope_parameters": {"rope_type": "default"},
                                      "rope_scaling": {"type": "linear", "factor": 2.0}}, 9000),
    "linear": ({"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}}, 300000),
    "linear_old": ({"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 8}}, 300000),
    "dynamic_within": ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}, 4095),
    "dynamic_one_past": ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}, 4096),
    "dynamic_far": ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, 1048575),
    "dynamic_old": ({"rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 3.0}}, 77777),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                                  "original_max_position_embeddings": 256}}, 4095),
    "yarn_old_qwen": ({"rope_theta": 1000000.0, "rope_scaling": {"type": "yarn", "factor": 4.0,
                                                                 "original_max_position_embeddings": 32768}}, 131071),
    "yarn_mscale": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.707,
                                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                                         "beta_fast": 32, "beta_slow": 1}}, 163839),
    "yarn_attention_factor": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                                                   "attention_factor": 1.25, "beta_fast": 20.0, "beta_slow": 0.5,
                                                   "original_max_position_embeddings": 512}}, 4095),
    "yarn_not_truncated": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0,
                                                "truncate": False, "original_max_position_embeddings": 4096}}, 131071),
    "yarn_original_implied": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}}, 8191),
    "yarn_factor_null": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": None,
                                              "original_max_position_embeddings": 512}}, 4095),
    "yarn_original_beside": ({"original_max_position_embeddings": 128, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}}, 4095),
    "llama3": ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                    "original_max_position_embeddings": 8192}, "head_dim": 128,
                "max_position_embeddings": 131072}, 1048575),
    "llama3_old": ({"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}, "head_dim": 64}, 131071),
    "head_dim_given": ({"head_dim": 80, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 9000),
    "qwen3": ({"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, 40959),
}


def table(name, keys, last):
    config_json = {"model_type": "llama", **BASE, **keys}
    config = AutoConfig.for_model(**json.loads(json.dumps(config_json)))
    rotary = {"llama": LlamaRotaryEmbedding, "qwen3": Qwen3RotaryEmbedding}[config_json["model_type"]](config)
    positions = sorted({p for p in (0, 1, 2, 3, 17, 255, 1000, 4095, 4096, 65537, last // 3, last) if p <= last})
    cos, sin = rotary(torch.zeros(1), torch.tensor([positions]))
    half = cos.shape[-1] // 2
    short = lambda tensor: [float(f"{value:.9g}") for value in tensor.flatten().tolist()]
    return {"name": name, "config": config_json, "sequence_tokens": last + 1, "positions": positions,
            "inverse_frequencies": short(rotary.inv_freq), "cos": short(cos[0, :, :half]), "sin": short(sin[0, :, :half])}


def main():
    out = pathlib.Path(__file__).resolve().parent / "fixtures" / "rope_tables.json"
    rows = [json.dumps(table(name, keys, last)) for name, (keys, last) in CASES.items()]
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{out.name}: {len(rows)} tables, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
