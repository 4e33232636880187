"""trireme.LongContextDataCollator: what a batch's targets cost is what its documents cost one by one."""

import pytest
import torch
import trireme
import trireme.hf
from test_parallelize import make_model

LENGTHS = (5, 11, 1, 7, 4)
LAYOUTS = {
    "right padding": dict(),
    "left padding": dict(padding_side="left"),
    "padding to 8": dict(pad_to_multiple_of=8),
    "one packed row": dict(packing=True),
    "a packed row, padding to 8": dict(packing=True, pad_to_multiple_of=8),
    "packed rows of 16": dict(packing=True, max_length=16),
    "packed rows of 16, left padding": dict(packing=True, max_length=16, padding_side="left"),
}
PAD = 9  # also a real token, as an end of text is


def make_features(chosen_labels=True):
    generator = torch.Generator().manual_seed(6)
    features = []
    for length in LENGTHS:
        ids = torch.randint(3, 67, (length,), generator=generator)
        ids[-1] = PAD
        labels = torch.where(torch.rand(length, generator=generator) < 0.3, -100, ids)
        features.append({"input_ids": ids.tolist(), **({"labels": labels.tolist()} if chosen_labels else {})})
    return features


def cost_one_by_one(model, features):
    """Sum of the targets' negative log likelihoods, and their number, each document alone."""
    total, targets = 0.0, 0
    for feature in features:
        ids = torch.tensor([feature["input_ids"]])
        logs = model(input_ids=ids).logits[0].log_softmax(-1)
        for place, label in enumerate(feature.get("labels", feature["input_ids"])):
            if place > 0 and label != -100:
                total, targets = total - logs[place - 1, label].item(), targets + 1
    return total, targets


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shift", [False, True])
def test_a_batch_costs_what_its_documents_cost(layout, shift):
    model, features = make_model("llama").eval(), make_features()
    batch = trireme.LongContextDataCollator(pad_token_id=PAD, shift_labels=shift, **LAYOUTS[layout])(features)
    assert all(value.is_contiguous() for value in batch.values())  # or a loss that views its targets fails
    with torch.no_grad():
        expected, targets = cost_one_by_one(model, features)
        labels = batch.pop("shift_labels") if shift else torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[:, 1:]
        logits = model(**batch, use_cache=False).logits
    cost = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100).item()
    assert (labels != -100).sum() == targets
    assert cost == pytest.approx(expected, rel=5e-6)


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_that_share_a_batch_get_the_same_cost(ranks, count):
    ranks.run(run_shared, count)


def run_shared(group):
    features = make_features()
    model = make_model("llama").eval()
    with torch.no_grad():
        total, targets = cost_one_by_one(model, features)
    for shift in (False, True):
        for layout, options in LAYOUTS.items():
            batch = trireme.LongContextDataCollator(pad_token_id=PAD, shift_labels=shift, **options)(features)
            part = trireme.shard(batch, group)
            labels = part.pop("shift_labels")
            with torch.no_grad(), trireme.parallelize(model, group):
                loss = trireme.loss(model(**part).logits, labels, group)
            assert trireme.count_targets(labels, group) == targets, layout
            assert abs(loss.item() - total / targets) <= 5e-6 * loss.item(), layout


def test_without_packing_it_is_the_batch_of_transformers():
    from transformers import DataCollatorForLanguageModeling

    class Tokenizer:
        pad_token, pad_token_id, padding_side = "<pad>", 0, "right"

        def pad(self, features, pad_to_multiple_of=None, **_):
            length = -(-max(len(f["input_ids"]) for f in features) // pad_to_multiple_of) * pad_to_multiple_of
            rows = [f["input_ids"] + [0] * (length - len(f["input_ids"])) for f in features]
            masks = [[1] * len(f["input_ids"]) + [0] * (length - len(f["input_ids"])) for f in features]
            return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}

    features = make_features(chosen_labels=False)
    theirs = DataCollatorForLanguageModeling(Tokenizer(), mlm=False, pad_to_multiple_of=4)(features)
    ours = trireme.LongContextDataCollator(Tokenizer(), pad_to_multiple_of=4)(features)
    assert torch.equal(ours["input_ids"], theirs["input_ids"]) and torch.equal(ours["attention_mask"], theirs["attention_mask"])
    assert torch.equal(ours["labels"][:, 1:], theirs["labels"][:, 1:]) and (ours["labels"][:, 0] == -100).all()


def test_rows_are_as_they_are_told():
    collate = trireme.LongContextDataCollator(pad_token_id=PAD, packing=True, max_length=8, pad_to_multiple_of=4)
    batch = collate([{"input_ids": [11, 12, 13, 14, 15]}, {"input_ids": torch.tensor([21, 22, 23, PAD])}, {"input_ids": [31, 32]}])
    assert batch["input_ids"].tolist() == [[11, 12, 13, 14, 15, 31, 32, PAD], [21, 22, 23, PAD, PAD, PAD, PAD, PAD]]
    assert batch["labels"].tolist() == [[-100, 12, 13, 14, 15, -100, 32, -100], [-100, 22, 23, PAD, -100, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 0], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert "attention_mask" not in batch
    left = trireme.LongContextDataCollator(pad_token_id=PAD, padding_side="left")([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    assert left["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]] and left["labels"].tolist() == [[-100, 2, 3], [-100] * 3]


def test_a_trainer_over_ranks_keeps_the_columns_that_it_reads(tmp_path):
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    packed = Dataset.from_list([{"input_ids": [3, 4, 5, 6, 7], "seq_lengths": [2, 3], "source": 1}])
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    collate = trireme.LongContextDataCollator(pad_token_id=PAD)
    trainer = trireme.hf.with_sequence_parallel(Trainer)(make_model("llama"), arguments, train_dataset=packed, data_collator=collate)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2]]


@pytest.mark.parametrize("told", [{"seq_lengths": [2, 3]}, {"position_ids": [0, 1, 0, 1, 2]}])
def test_features_that_came_packed_stay_so(told):
    batch = trireme.LongContextDataCollator(pad_token_id=PAD)([{"input_ids": [1, 2, 3, 4, 5], **told}])
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2]] and batch["labels"].tolist() == [[-100, 2, -100, 4, 5]]
    assert "attention_mask" not in batch


def test_padding_in_features_is_dropped():
    feature = {"input_ids": [0, 0, 5, 6, 0], "attention_mask": [0, 0, 1, 1, 0], "position_ids": [1, 1, 0, 1, 1]}
    batch = trireme.LongContextDataCollator(pad_token_id=PAD)([feature | {"labels": [-100, -100, 5, 6, -100]}])
    assert batch["input_ids"].tolist() == [[5, 6]] and batch["labels"].tolist() == [[-100, 6]]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_summary_counts_all_batches(workers):
    collate = trireme.LongContextDataCollator(pad_token_id=PAD, pad_to_multiple_of=4, max_length=8, truncation=True)
    loader = torch.utils.data.DataLoader(make_features(), batch_size=2, collate_fn=collate, num_workers=workers)
    batches = list(loader)
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 8), (2, 8), (1, 4)]
    summary = collate.summary
    assert (summary.tokens, summary.padding, summary.truncated) == (5 + 8 + 1 + 7 + 4, 3 + 0 + 7 + 1 + 0, 3)
    assert summary.padding == sum(int((batch["attention_mask"] == 0).sum()) for batch in batches)
    assert summary.share == 11 / 36 and str(summary) == "25 tokens, 11 of padding (30.6%), 3 cut off"


REFUSED_FEATURES = {
    "feature 1 has 9 tokens, more than max_length 8": [{"input_ids": [1]}, {"input_ids": [1] * 9}],
    "feature 0 has 9 tokens, more than max_length 8": [{"input_ids": [1] * 9, "seq_lengths": [4, 5]}],
    "feature 0 has the columns": [{"input_ids": [1], "text": "a"}],
    "expected input_ids": [{"labels": [1]}],
    "labels of .2": [{"input_ids": [1, 2, 3], "labels": [1, 2]}],
    "some of them with labels": [{"input_ids": [1]}, {"input_ids": [1], "labels": [1]}],
    "with a hole": [{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}],
    "feature 0: got an attention_mask with values from 0 to 2": [{"input_ids": [1, 2, 3], "attention_mask": [1, 2, 0]}],
    "seq_lengths .2, 2. for 3": [{"input_ids": [1, 2, 3], "seq_lengths": [2, 2]}],
    "at least a token": [{"input_ids": []}],
}


@pytest.mark.parametrize("words", REFUSED_FEATURES)
def test_features_that_are_refused_are_named(words):
    with pytest.raises(trireme.ConfigError, match=words):
        trireme.LongContextDataCollator(pad_token_id=PAD, max_length=8)(REFUSED_FEATURES[words])


REFUSED_OPTIONS = {
    "no pad token": dict(),
    "padding_side: got 'top'": dict(pad_token_id=0, padding_side="top"),
    "max_length: got 10, expected a multiple of pad_to_multiple_of, 4": dict(pad_token_id=0, max_length=10, pad_to_multiple_of=4),
    "no max_length to cut at": dict(pad_token_id=0, truncation=True),
    "expected 1 or more": dict(pad_token_id=0, max_length=0),
}


@pytest.mark.parametrize("words", REFUSED_OPTIONS)
def test_options_that_are_refused_are_named(words):
    with pytest.raises(trireme.ConfigError, match=words):
        trireme.LongContextDataCollator(**REFUSED_OPTIONS[words])


@pytest.mark.parametrize("packing", [False, True])
def test_a_trainer_takes_it(tmp_path, packing):
    from transformers import Trainer, TrainingArguments

    model, features = make_model("llama"), make_features()
    with torch.no_grad():
        expected, targets = cost_one_by_one(model, features)
    options = dict(per_device_train_batch_size=5, max_steps=1, report_to=[], save_strategy="no", use_cpu=True, logging_steps=1)
    arguments = TrainingArguments(output_dir=str(tmp_path), **options, disable_tqdm=True)
    collate = trireme.LongContextDataCollator(pad_token_id=PAD, packing=packing)
    done = Trainer(model, arguments, train_dataset=features, data_collator=collate).train()
    assert done.training_loss == pytest.approx(expected / targets, rel=1e-5)
