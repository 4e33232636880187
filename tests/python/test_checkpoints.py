"""What `trireme init` writes is a model and a tokenizer that transformers loads, with the values that the seed gives."""

import json
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import hf_reference

from program import make_tiny, run

TINY = ["tiny", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-mixtral", "tiny-qwen3-moe", "tiny-gemma2", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4-e2b", "tiny-ministral3", "tiny-qwen3.5",
        "tiny-qwen3.5-moe"]


def weights(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


@pytest.mark.parametrize("preset", TINY + ["small"])
def test_every_parameter_is_loaded_and_none_is_left_over(tmp_path, preset):
    run(".", "init", "--out", tmp_path, "--preset", preset, *(["--set", "num_hidden_layers=2"] if preset == "small" else []))
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    written = weights(tmp_path)
    scales = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]  # Gemma 4's
    loaded = [in_file for name, parameter in [*model.named_parameters(), *scales]
              for in_file in hf_reference.names_in_file(model.config.model_type, name, parameter.detach())]
    assert written.keys() == {name for name, _ in loaded}
    for name, parameter in loaded:
        assert torch.equal(parameter, written[name]), name
        adds_one = preset in ("tiny-gemma2", "tiny-gemma3", "tiny-qwen3.5", "tiny-qwen3.5-moe") and not name.endswith("linear_attn.norm.weight")
        expected = 0 if name.endswith(".bias") or (adds_one and name.endswith("norm.weight")) else 1
        if name.endswith("A_log"):  # as transformers draws it: between 0 and 16
            assert (parameter.exp() < 16).all() and parameter.std() > 0, name
        elif parameter.dim() == 1:
            assert (parameter == expected).all(), name
        else:
            assert abs(parameter.std().item() - 0.02) < 0.002, name
    out = model(torch.tensor([[1, 2, 3]]))
    assert torch.isfinite(out.logits).all()


# To the nearest, which is torch's own rounding but for one value in 131,072: of two as near that of the larger magnitude
# is taken (docs/methods/precision.md), as compute reads them.
def test_low_precision_is_the_fp32_model_rounded(tmp_path):
    make_tiny(tmp_path / "a")
    make_tiny(tmp_path / "b", "--dtype", "bfloat16")
    full, half = weights(tmp_path / "a"), weights(tmp_path / "b")
    others = elements = 0
    for name in full:
        nearest = ((full[name].view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
        assert half[name].dtype == torch.bfloat16 and torch.equal(nearest, half[name])
        others += int((full[name].bfloat16() != half[name]).sum())
        elements += full[name].numel()
    assert others < elements / 10_000
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "b").dtype == torch.bfloat16


def test_the_seed_and_nothing_else_decides_the_values(tmp_path):
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        make_tiny(tmp_path / folder, "--seed", seed)
    a, b, c = (weights(tmp_path / folder) for folder in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])


def test_changes_of_the_configuration_reach_transformers(tmp_path):
    make_tiny(tmp_path, "--set", "hidden_size=96", "--set", "rope_scaling.rope_type=linear", "--set", "rope_scaling.factor=4.0")
    config = AutoModelForCausalLM.from_pretrained(tmp_path).config
    assert config.hidden_size == 96
    assert config.rope_parameters["rope_type"] == "linear" and config.rope_parameters["factor"] == 4.0


def test_the_tokenizer_of_the_tiny_presets_is_loaded_and_gives_back_any_text(tmp_path):
    make_tiny(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "for (int i = 0; i < n; ++i)  // naïve 漢字 🙂\n\tx;"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(tokenizer) <= config["vocab_size"]
    assert tokenizer.eos_token_id == config["eos_token_id"]


def test_a_folder_that_is_not_empty_is_left_alone_unless_asked(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "--overwrite" in run(".", "init", "--out", tmp_path, "--preset", "tiny", code=78)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    make_tiny(tmp_path, "--overwrite")
    assert (tmp_path / "notes.txt").read_text() == "mine" and (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("arguments, expected", [
    (["--preset", "tinny"], "'tiny'"),
    (["--preset", "tiny", "--set", "hiden_size=3"], "'hidden_size'"),
    (["--preset", "tiny", "--set", "hidden_size"], "key=value"),
    (["--preset", "tiny", "--set", "num_key_value_heads=3"], "not a multiple"),
    (["--preset", "tiny", "--set", "vocab_size=100"], "byte-level tokenizer"),
])
def test_a_wrong_request_is_told_apart_and_suggests(tmp_path, arguments, expected):
    assert expected in run(".", "init", "--out", tmp_path / "out", *arguments, code=78)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scaling", ["yarn:4", "linear:4", "dynamic:4", "llama3:4"])
def test_rope_by_flags_is_the_rope_that_transformers_reads(tmp_path, monkeypatch, scaling):
    """What `init --rope_scaling` writes, transformers computes, and so does Trireme by the flag alone on the model without it."""
    sizes = ["--set", "max_position_embeddings=32"]
    make_tiny(tmp_path / "plain", *sizes)
    make_tiny(tmp_path / "scaled", *sizes, "--rope_scaling", scaling, "--rope_theta", "20000")
    config = AutoConfig.from_pretrained(tmp_path / "scaled")
    kind, factor = scaling.split(":")
    assert config.rope_parameters["rope_type"] == kind and config.rope_parameters["factor"] == float(factor)
    assert config.rope_parameters["rope_theta"] == 20000
    assert config.max_position_embeddings == (32 if kind == "dynamic" else 128)
    if kind in ("yarn", "llama3"):
        assert config.rope_parameters["original_max_position_embeddings"] == 32
    reference = tmp_path / "reference.safetensors"
    monkeypatch.setattr(sys, "argv", ["hf_reference.py", str(tmp_path / "scaled"), "--seq", "100", "--out", str(reference)])
    hf_reference.main()
    verify = ["verify", "--model", tmp_path / "plain", "--reference", reference, "--threads", 1]
    run(".", *verify, "--rope_scaling", scaling, "--rope_theta", 20000)
    run(".", *verify, code=1)
