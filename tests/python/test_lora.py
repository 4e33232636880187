"""LoRA in the engine beside PEFT: steps of AdamW from the same adapter give the same losses and matrices, and what is exported is read by PEFT
and Transformers with the engine's loss.
"""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from program import END_OF_TEXT, run

LENGTH, STEPS, RATE = 80, 6, 1e-2
TEXTS = ["a boat with three rows of oars " * count for count in (1, 2)] + ["ten ships, twenty ships; " * 3, "x"]
MODELS = ["tiny", "tiny-qwen3-moe", "tiny-qwen3.5-moe"]


def base_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)


@pytest.fixture(scope="module", params=MODELS)
def tuning(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    run(folder, "init", "--preset", request.param, "--out", "model", "--seed", 1)
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    run(folder, "tokenize", "--tokenizer", "model", "--input", "texts.jsonl", "--output", "texts")
    torch.manual_seed(3)
    base = base_model(folder)
    lora = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "o_proj"], lora_dropout=0.0)
    if request.param != "tiny-qwen3-moe":
        lora.modules_to_save, lora.ensure_weight_tying = ["embed_tokens", "norm"], base.config.tie_word_embeddings
        lora.modules_to_tie = None
    model = get_peft_model(base, lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    model.save_pretrained(folder / "adapter")
    return folder


def loss_of(model):
    """The mean over the tokens of all texts; a document longer than a sample is cut into more."""
    total, count = 0, 0
    for text in TEXTS:
        ids = torch.tensor([[*text.encode(), END_OF_TEXT]])
        total = total + model(ids, labels=ids, use_cache=False).loss * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    return total / count


def train(folder, output, *words, ranks=1, rate=RATE, model="model"):
    launch = ["launch", "--nproc_per_node", ranks, "--"] if ranks > 1 else []
    return run(folder, *launch, "train", "--model_name_or_path", model, "--train_file", "texts", "--output_dir", output, "--packing", "none",
               "--max_seq_length", LENGTH, "--gradient_accumulation_steps", len(TEXTS), "--max_steps", STEPS, "--per_device_train_batch_size", 1,
               "--learning_rate", rate, "--lr_scheduler_type", "constant", "--weight_decay", 0.1, "--max_grad_norm", 0.2, "--sp", ranks,
               "--device", "cpu", "--threads", 1, "--peak_tflops", 1, "--report_to", "none", *words)  # fmt: skip


def losses_of(run_folder):
    return [json.loads(line)["loss"] for line in (run_folder / "metrics.jsonl").read_text().splitlines() if "loss" in line]


def losses_of_steps(model, optimizer):
    """Of STEPS steps over all texts, with the clipping that `train` asks for."""
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.2)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("ranks", "zero"), [(1, 0), (2, 3)])
def test_steps_from_an_adapter_are_those_of_peft(tuning, tmp_path, ranks, zero):
    model = PeftModel.from_pretrained(base_model(tuning), tuning / "adapter", is_trainable=True)
    model.eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [dict(params=[each for each in trained if each.dim() > 1], weight_decay=0.1),
              dict(params=[each for each in trained if each.dim() == 1], weight_decay=0.0)]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    losses = losses_of_steps(model, optimizer)
    said = train(tuning, tmp_path / "run", "--adapter", "adapter", "--zero", zero, ranks=ranks)
    assert "LoRA of rank 4, scale 1.5, of q_proj, v_proj, o_proj" in said
    assert losses_of(tmp_path / "run") == pytest.approx(losses, rel=1e-5)
    run(tuning, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "exported")
    got, base = load_file(tmp_path / "exported/adapter_model.safetensors"), load_file(tuning / "adapter/adapter_model.safetensors")
    expected = {
        name.replace(".modules_to_save.default.", ".").replace(".default.", "."): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert got.keys() == base.keys()
    assert got.keys() - expected.keys() <= {"base_model.model.lm_head.weight"}  # of a tied embedding
    for name, parameter in expected.items():
        # AdamW's first steps follow signs: of the way that a matrix went, not of an entry.
        way = (parameter - base[name]).norm()
        assert (got[name] - parameter).norm() <= 2e-3 * way, name


@pytest.mark.parametrize(("tuning", "modules"), [*((model, "embed_tokens,norm") for model in MODELS), ("tiny", "")], indirect=["tuning"])
def test_what_is_exported_has_the_loss_of_the_run_in_peft_transformers_and_the_engine(tuning, modules, tmp_path):
    words = ["--lora_modules_to_save", modules] if modules else []
    train(tuning, tmp_path / "run", "--lora_r", 3, "--use_rslora", "--lora_alpha", 4, *words)
    eval_words = ["--eval_file", "texts", "--packing", "none", "--max_seq_length", LENGTH, "--json"]
    evaluated = json.loads(run(tuning, "eval", "loss", "--checkpoint", tmp_path / "run", *eval_words))["loss"]
    started = json.loads(run(tuning, "eval", "loss", "--model_name_or_path", "model", *eval_words))["loss"]
    assert evaluated < started - 0.05

    said = run(tuning, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "adapter")
    assert "LoRA adapter" in said and str(tuning / "model") in said
    adapted = PeftModel.from_pretrained(base_model(tuning), tmp_path / "adapter")
    with torch.no_grad():
        assert loss_of(adapted).item() == pytest.approx(evaluated, rel=1e-5)
    again = run(tuning, "eval", "loss", "--model_name_or_path", "model", "--adapter", tmp_path / "adapter", *eval_words)
    assert json.loads(again)["loss"] == evaluated

    said = run(tuning, "export", "--checkpoint", tmp_path / "run", "--merge", "--out", tmp_path / "merged", "--dtype", "float32")
    assert "merged into" in said
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
        assert loss_of(merged).item() == pytest.approx(evaluated, rel=1e-5)
    of_merged = json.loads(run(tuning, "eval", "loss", "--model_name_or_path", tmp_path / "merged", *eval_words))["loss"]
    assert of_merged == pytest.approx(evaluated, rel=1e-6)


@pytest.mark.parametrize("tuning", ["tiny"], indirect=True)
def test_what_an_export_would_not_read_is_refused(tuning, tmp_path):
    train(tuning, tmp_path / "run", "--lora_r", 2)
    words = ["export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "out"]
    assert "--merge" in run(tuning, *words, "--dtype", "bfloat16", code=78)
    assert "--merge" in run(tuning, *words, "--model_name_or_path", "model", code=78)
    train(tuning, tmp_path / "whole")
    assert "--merge" in run(tuning, "export", "--checkpoint", tmp_path / "whole", "--out", tmp_path / "out", "--merge", code=78)
