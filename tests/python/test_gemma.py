"""Gemma 3's text model, taken out of one that reads images by the lines of docs/models.md, is what Trireme says it is."""

import os
import pathlib
import re
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

BINARY = os.environ["TRIREME_BINARY"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            query_pre_attn_scalar=20, sliding_window=32, sliding_window_pattern=2, max_position_embeddings=4096,
            rope_scaling={"rope_type": "linear", "factor": 8.0}, bos_token_id=2, eos_token_id=1, pad_token_id=0)
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14)


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)


def test_the_documented_lines_make_a_text_model_with_the_numbers_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    images = dict(mm_tokens_per_image=4, image_token_index=319, boi_token_index=318, eoi_token_index=317)
    Gemma3ForConditionalGeneration(Gemma3Config(text_config=TEXT, vision_config=VISION, **images)).save_pretrained("whole")
    run(BINARY, "init", "--preset", "tiny", "--out", "tiny", check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "whole" / name).write_bytes((tmp_path / "tiny" / name).read_bytes())

    refused = run(BINARY, "eval", "loss", "--model_name_or_path", "whole", "--eval_file", "none.txt")
    assert refused.returncode == 78 and "docs/models.md" in refused.stderr, refused.stderr

    lines = re.findall(r"^    (.*)$", (ROOT / "docs" / "models.md").read_text().split("save their text model first:")[1], re.MULTILINE)
    code = "\n".join(lines[: next(i for i, line in enumerate(lines) if "AutoTokenizer.from" in line) + 1])
    assert code.count("google/gemma-3-4b-pt") == 2
    names = {}
    exec(code.replace("google/gemma-3-4b-pt", "whole").replace("gemma-3-4b-text", "text"), names)

    ids = torch.arange(3, 60)[None]
    text = AutoModelForCausalLM.from_pretrained("text", dtype=torch.bfloat16).eval()
    assert torch.equal(text(ids).logits, names["whole"].eval()(input_ids=ids).logits)

    reference = ROOT / "tools" / "hf_reference.py"
    run(sys.executable, reference, "text", "--seq", "90", "--scale-weights", "3", "--out-model", "scaled", "--out", "reference.safetensors", check=True)
    verified = run(BINARY, "launch", "--nproc_per_node", "2", "--", "verify", "--model", "scaled", "--reference", "reference.safetensors", "--sp", "2")
    assert verified.returncode == 0 and "PASSED" in verified.stdout, verified.stdout + verified.stderr
