"""A Transformers Trainer's checkpoint, turned by tools/from_transformers.py, goes on in Trireme with the steps that Transformers
would have taken: weights, moments, the number of the step in AdamW and in the schedule."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, get_linear_schedule_with_warmup

from program import make_tiny, run

TOOL = Path(__file__).resolve().parents[2] / "tools/from_transformers.py"
TEXT = "Every rower pulls one hull: twice six is twelve, " * 2
LENGTH = len(TEXT) + 1  # with the token that ends a document
STEPS, SAVED, RATE, WARMUP, DECAY = 8, 3, 3e-3, 2, 0.1


class TrainerOf:
    """The Trainer's optimizer, schedule, clipping and files (its loop needs a package that is not here)."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        decays = Trainer.get_decay_parameter_names(None, self.model)
        named = list(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            [{"params": [p for n, p in named if n in decays], "weight_decay": DECAY},
             {"params": [p for n, p in named if n not in decays], "weight_decay": 0.0}], lr=RATE, betas=(0.9, 0.98), eps=1e-8)
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, WARMUP, STEPS)

    def step(self, ids):
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.item()

    def save(self, folder, **how):
        self.model.save_pretrained(folder, **how)
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(self.schedule.state_dict(), folder / "scheduler.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": SAVED, "max_steps": STEPS, "epoch": 1.5}))


def tool():
    spec = importlib.util.spec_from_file_location("from_transformers", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(checkpoint, out):
    with pytest.raises(SystemExit) as refused:
        tool().convert(checkpoint, out)
    return str(refused.value)


def go_on(checkpoint, folder, out, *more, steps=STEPS):
    return run(
        folder, "train", "--model_name_or_path", checkpoint, "--train_file", "text.jsonl", "--output_dir", out, "--resume_from_checkpoint", "true",
        "--max_steps", steps, "--learning_rate", RATE, "--warmup_steps", WARMUP, "--adam_beta2", 0.98, "--weight_decay", DECAY, "--max_grad_norm", 1,
        "--save_steps", 1, "--max_seq_length", LENGTH, "--per_device_train_batch_size", 1, "--peak_tflops", 1, "--threads", 1, *more)


@pytest.fixture(scope="module", params=["one file", "shards, tied"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    sharded = request.param != "one file"
    make_tiny(folder / "model", *(["--set", "tie_word_embeddings=true"] if sharded else []))
    (folder / "text.jsonl").write_text((json.dumps({"text": TEXT}) + "\n") * 40)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    ids = torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]])
    assert ids.shape[1] == LENGTH
    trainer = TrainerOf(folder / "model")
    for _ in range(SAVED):
        trainer.step(ids)
    checkpoint = folder / f"checkpoint-{SAVED}"
    trainer.save(checkpoint, **({"max_shard_size": "60KB"} if sharded else {}))
    assert (checkpoint / "model.safetensors.index.json").exists() == sharded
    tokenizer.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    tokenizer.save_pretrained(checkpoint)
    losses, weights = [], []
    for _ in range(STEPS - SAVED):
        losses.append(trainer.step(ids))
        weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
    return folder, checkpoint, losses, weights


def test_every_step_after_the_conversion_is_the_one_that_transformers_takes(trained, tmp_path, monkeypatch, capsys):
    folder, checkpoint, losses, weights = trained
    monkeypatch.setattr(sys, "argv", [str(TOOL), str(checkpoint), "--out", str(tmp_path)])
    tool().main()
    assert f"--output_dir {tmp_path} --resume_from_checkpoint true --learning_rate 0.003" in capsys.readouterr().out
    said = go_on(checkpoint, folder, tmp_path)
    assert f"resumed at step {SAVED} of {STEPS}" in said and "the data begins at its beginning" in said
    assert "changed option: learning_rate" not in said
    further = "additional_chat_templates/tool_use.jinja"
    for step in (SAVED, STEPS):
        assert (tmp_path / f"checkpoints/step-{step}" / further).read_bytes() == (checkpoint / further).read_bytes()
    records = {record["step"]: record for record in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())}
    for step, (loss, expected) in enumerate(zip(losses, weights), SAVED + 1):
        assert abs(records[step]["loss"] - loss) < 1e-4 * loss
        saved = load_file(tmp_path / f"checkpoints/step-{step}/rank-00000.safetensors")
        for name, values in expected.items():
            error = (saved[name] - values).abs().max() / values.abs().max()
            assert error < (1e-5 if step == SAVED + 1 else 1e-4), (step, name)


def test_steps_that_overflowed_in_fp16_did_not_move_the_schedule(trained, tmp_path):
    _, checkpoint, _, _ = trained
    later = shutil.copytree(checkpoint, tmp_path / "later")
    state = json.loads((later / "trainer_state.json").read_text())
    (later / "trainer_state.json").write_text(json.dumps(state | {"global_step": SAVED + 1}))
    tool().convert(later, tmp_path / "out")
    assert json.loads((tmp_path / f"out/checkpoints/step-{SAVED + 1}/trainer_state.json").read_text())["overflowed_steps"] == 1


def test_other_options_than_the_trainer_s_are_told(trained, tmp_path):
    folder, checkpoint, _, _ = trained
    tool().convert(checkpoint, tmp_path)
    said = go_on(checkpoint, folder, tmp_path, "--adam_beta1", "0.8", "--zero", "3", steps=4)
    assert "changed option: adam_beta1 0.9 -> 0.8" in said and "changed option: max_steps 8 -> 4" in said
    assert "is there already" in refusal(checkpoint, tmp_path)


@pytest.mark.parametrize("harm, expected", [
    (lambda folder, saved: (folder / "optimizer.pt").unlink(), "the weights alone can begin a run"),
    (lambda folder, saved: saved["param_groups"][0]["params"].pop(), "groups have"),
    (lambda folder, saved: saved["state"][1].pop("exp_avg_sq"), "expected AdamW's exp_avg and exp_avg_sq"),
    (lambda folder, saved: saved["state"][1].update(exp_avg=torch.zeros(3)), "exp_avg of parameter 1 is [3]"),
    (lambda folder, saved: saved["state"][0].update(exp_avg=torch.full_like(saved["state"][0]["exp_avg"], float("nan"))),
     "is not finite"),
])
def test_what_is_not_the_trainer_s_adamw_is_refused_by_name(trained, tmp_path, harm, expected):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(trained[1], checkpoint)
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    harm(checkpoint, saved)
    if (checkpoint / "optimizer.pt").exists():
        torch.save(saved, checkpoint / "optimizer.pt")
    assert expected in refusal(checkpoint, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/step-?"))
