"""`trireme plan --script`: the diff that it prints, applied, trains over two ranks with the losses of the script as it was in one
process; the native command beside it runs with what the script said.
"""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from program import make_tiny, run

SCRIPT = """\
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL = "tiny"

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
arguments = SFTConfig(
    output_dir="out",
    max_steps=4,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_length=61,  # divides by nothing
    packing=True,
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    seed=7,
    bf16=False,
    gradient_checkpointing=False,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
texts = open("text.txt").read().split("\\n")
trainer = SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_dict({"text": texts}),
                     processing_class=AutoTokenizer.from_pretrained(MODEL))
trainer.train()
if trainer.is_world_process_zero():
    print("losses", [row["loss"] for row in trainer.state.log_history if "loss" in row])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    make_tiny(folder / "tiny")
    (folder / "text.txt").write_text("\n".join(f"Line {i} follows line {i - 1}, and {i * i} is its square." for i in range(200)))
    (folder / "train.py").write_text(SCRIPT)
    return folder


@pytest.fixture(scope="module")
def plan(folder):
    return json.loads(run(folder, "plan", "--script", "train.py", "--gpu", "h100-80gb", "--gpus", 2, "--sp", 2, "--zero", 0, "--json"))


def output_of(words, folder):
    done = subprocess.run(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_script_plans_itself(plan):
    assert (plan["best"]["tokens"], plan["precision"]) == (61, "fp32")
    configuration = plan["best"]["configuration"]
    assert (configuration["per_device_train_batch_size"], configuration["gradient_accumulation_steps"]) == (2, 2)
    assert plan["script"]["trainer"] == "trl.SFTTrainer"
    assert plan["script"]["launch"] == "torchrun --nproc_per_node 2 train.py"
    assert {"learning_rate", "seed", "max_steps", "lr_scheduler_type"} <= set(plan["script"]["native_options"])
    assert {"use_cpu", "save_strategy"} <= set(plan["script"]["not_carried"])


@pytest.mark.slow
def test_the_changed_script_on_two_ranks_has_the_losses_of_the_script_alone(folder, plan):
    alone = output_of([sys.executable, "train.py"], folder)
    subprocess.run(["git", "apply", "-"], cwd=folder, input=plan["script"]["diff"], check=True, text=True)
    launch = plan["script"]["launch"].removeprefix("torchrun ").split()
    module = [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    shared = output_of([*module, *launch], folder)
    losses = [[float(loss) for loss in re.search(r"losses \[(.*)\]", out)[1].replace("'", "").split(",")] for out in (alone, shared)]
    assert len(losses[0]) == 4 and losses[0][3] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], abs=2e-5)


def test_the_native_command_runs_with_what_the_script_says(folder, plan):
    words = shlex.split(plan["launch"])
    assert words[0] == "trireme"
    change = {"TEXT": "text.txt", "RUN": "run", "cuda": "cpu"}
    run(folder, *(change.get(word, word) for word in words[1:]), "--threads", 1)
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert all(step["learning_rate"] == pytest.approx(1e-3) for step in steps)
    config = json.loads((folder / "run/config.json").read_text())
    assert (config["seed"], config["max_seq_length"], config["per_device_train_batch_size"]) == (7, 61, 2)
