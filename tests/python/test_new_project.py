"""The folder that `trireme new --variant transformers` makes: its loop trains, its collator pads and masks right."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from program import make_tiny, run


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / "run"
    run(".", "new", folder, "--variant", "transformers")
    make_tiny(folder / "model", "--set", "num_hidden_layers=2")
    return folder


@pytest.fixture(scope="module")
def collator(project):
    spec = importlib.util.spec_from_file_location("long_context_collator", project / "data/long_context_collator.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_script_trains_and_saves_a_model(project):
    ran = subprocess.run([project / "scripts/launch.sh", "--max_steps", "6"], env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d of 6  loss ([\d.]+)$", ran.stdout, re.M)]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.3, ran.stdout
    AutoModelForCausalLM.from_pretrained(project / "runs/first")


def test_the_collator_pads_to_a_multiple_and_masks_by_position(collator):
    pad = 7  # also a real token, as an end of text is
    batch = collator.LongContextDataCollator(pad, max_length=12, degree=4)([{"input_ids": [1, 2, 7, 4, 7]}, {"input_ids": [5, 6]}])
    assert batch["input_ids"].tolist() == [[1, 2, 7, 4, 7, 7, 7, 7], [5, 6, 7, 7, 7, 7, 7, 7]]
    assert batch["labels"].tolist() == [[1, 2, 7, 4, 7, -100, -100, -100], [5, 6] + [-100] * 6]
    assert batch["attention_mask"].tolist() == [[1] * 5 + [0] * 3, [1] * 2 + [0] * 6]
    given = collator.LongContextDataCollator(0, 4)([{"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}])
    assert given["labels"].tolist() == [[-100, -100, 3]]


def test_what_the_collator_cannot_do_is_refused(collator):
    with pytest.raises(ValueError, match="no multiple of the degree 3"):
        collator.LongContextDataCollator(0, max_length=8, degree=3)
    with pytest.raises(ValueError, match="5 tokens, more than max_length 4"):
        collator.LongContextDataCollator(0, 4)([{"input_ids": [1] * 5}])


@pytest.mark.parametrize("degree", [2, 4])
def test_losses_of_the_shares_add_up_to_that_of_the_whole_unpadded_sample(project, collator, degree):
    model = AutoModelForCausalLM.from_pretrained(project / "model").eval()
    ids = torch.randint(0, 250, (9,), generator=torch.Generator().manual_seed(1)).tolist()
    make = collator.LongContextDataCollator(0, max_length=16, degree=degree)
    batch = make([{"input_ids": ids}])
    with torch.no_grad():
        expected = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
        assert model(**batch).loss.item() == pytest.approx(expected, rel=1e-5)
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    total, targets = 0.0, 0
    for rank, part in enumerate(logits.chunk(degree, dim=1)):
        share = make.share(batch, rank)
        labels = share["shift_labels"].flatten()
        assert share["input_ids"].shape[1] * degree == batch["input_ids"].shape[1]
        total += torch.nn.functional.cross_entropy(part.flatten(0, 1).float(), labels, ignore_index=-100, reduction="sum").item()
        targets += int((labels != -100).sum())
    assert targets == len(ids) - 1
    assert total / targets == pytest.approx(expected, rel=1e-5)
