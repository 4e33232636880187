"""preprocess_logits_for_metrics on each rank's tokens: what it gives arrives whole, and what is not by token is refused on every rank."""

import types

import pytest
import torch
import transformers
import trireme
import trl
from trainer_cases import likeliest, make_model, own_loss, pad, token_accuracy
from trireme.hf import with_sequence_parallel
from trireme.hf.logits_by_token import HookByToken, advice_on_logits, check_hook_by_token
from trireme.sequence_of_call import SequenceOfCall
from trireme.whole_batches import WholeBatches

TOKENS, VOCABULARY = 9, 7


def of_call(group):
    """Logits of this rank's tokens, the sequence, and logits and labels of all tokens."""
    shared = trireme.SequenceGroup(group)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, TOKENS, VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (2, TOKENS), generator=generator)
    begin, end = shared.spans(TOKENS)[0]
    return logits[:, begin:end], SequenceOfCall(shared, shared.lengths(TOKENS), [], [], False, TOKENS - 1, False), logits, labels


def largest_of_the_next(logits, labels):
    return torch.nn.functional.pad(logits.amax(-1)[:, 1:], (0, 1))


def fails_on_rank_1(logits, labels):
    return {5: logits, 3: logits}[logits.shape[1]]  # rank 0's tokens, and those in their middle


NOT_BY_TOKEN = [
    ("gave a tensor of", "gave a tensor of", lambda logits, labels: logits[:, :-1].argmax(-1)),
    ("gave a list", "gave a list", lambda logits, labels: logits.argmax(-1).tolist()),
    ("gave other values for", "gave other values for", largest_of_the_next),
    ("gave other values for", "gave other values for", lambda logits, labels: logits.cumsum(1)),
    ("gave something else on another rank", "gave a NoneType", lambda logits, labels: logits.argmax(-1) if logits.shape[1] != 4 else None),
    ("gave something else on another rank", "raised KeyError: 4", fails_on_rank_1),
]


def by_token(hook):
    return HookByToken(hook, trireme.SequenceGroup.alone())


def run_hooks(group):
    own, sequence, logits, labels = of_call(group)
    for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.float64):
        found = by_token(lambda some, _: (some * 3).to(dtype))(own, sequence, labels)
        assert torch.equal(found, (logits * 3).to(dtype))
    assert all(map(torch.equal, by_token(likeliest)(own, sequence, labels), likeliest(logits, labels)))
    assert torch.equal(by_token(lambda some, none: some.amax(-1))(own, sequence, None), logits.amax(-1))
    for of_ranks in NOT_BY_TOKEN:
        with pytest.raises(trireme.ConfigError, match=f"preprocess_logits_for_metrics {of_ranks[group.rank()]}.*, expected a label"):
            by_token(of_ranks[-1])(own.clone(), sequence, labels)
    for some in (labels[:, :-2], labels[:, 0], (labels, labels[:, :-2])):  # prompt tuning adds tokens to the logits
        with pytest.raises(trireme.ConfigError, match=r"got labels of \(2.*, expected a label for each of 9 tokens"):
            by_token(likeliest)(own, sequence, some)
    assert torch.equal(by_token(lambda some, _: some.div_(2).amax(-1))(own.clone(), sequence, labels), logits.amax(-1) / 2)


def test_what_the_hook_gives_arrives_whole_or_is_refused_on_every_rank(ranks):
    ranks.run(run_hooks, 2)


def run_data_ranks(group):
    """Each has a batch of its own length."""
    data_group, alone = trireme.SequenceGroup(group), trireme.SequenceGroup.alone()
    _, _, logits, labels = of_call(group)
    tokens = TOKENS - 3 * group.rank()
    sequence = SequenceOfCall(alone, [tokens], [], [], False, tokens - 1, False)
    logits, labels = logits[:, :tokens], labels[:, :tokens]
    padded = torch.nn.functional.pad(logits, (0, 0, 0, TOKENS - tokens), value=-100), torch.nn.functional.pad(labels, (0, TOKENS - tokens), value=-100)
    for hook in (likeliest, lambda some, _: some[..., :2] > 0, lambda some, _: some.argmax(-1).to(torch.uint8), lambda some, _: some):
        found, expected = HookByToken(hook, data_group)(logits, sequence, labels), hook(*padded)
        for one, other in zip(found, expected) if isinstance(found, tuple) else [(found, expected)]:
            assert one.dtype == other.dtype and torch.equal(one, other)
    with pytest.raises(trireme.ConfigError, match=["something else on another rank", "a NoneType"][group.rank()]):
        HookByToken(lambda some, _: some if group.rank() == 0 else None, data_group)(logits, sequence, labels)
    with pytest.raises(trireme.ConfigError, match="raised for padding, whose logits and labels are -100, RuntimeError"):
        HookByToken(lambda some, of: some.gather(-1, of[..., None]), data_group)(logits, sequence, labels.clamp(min=0))


def test_data_ranks_pad_what_it_gives_as_a_trainer_would_and_are_refused_together(ranks):
    ranks.run(run_data_ranks, 2)


def make_trainer(folder, base=transformers.Trainer, model=None, label_smoothing_factor=0.0, **more):
    settings = dict(report_to="none", use_cpu=True, remove_unused_columns=False, label_smoothing_factor=label_smoothing_factor)
    arguments = transformers.TrainingArguments(str(folder), **settings)
    more.update(eval_dataset=[{"input_ids": list(range(3, 12)), "labels": [-100] * 9}] * 2, data_collator=without_labels)
    return with_sequence_parallel(base, logits_by_token=True)(model or make_model(), arguments, **more)


def without_labels(rows):
    return {"input_ids": pad(rows)["input_ids"]}


def test_a_batch_without_labels_has_them_too(tmp_path):
    trainer = make_trainer(tmp_path, preprocess_logits_for_metrics=lambda logits, labels: (logits.argmax(-1), logits.amax(-1)))
    hook = trainer.preprocess_logits_for_metrics
    with torch.no_grad():
        logits = trainer.model.eval()(**without_labels(trainer.eval_dataset)).logits
    found, largest = trainer.predict(trainer.eval_dataset).predictions
    assert torch.equal(torch.from_numpy(found), logits.argmax(-1)) and torch.allclose(torch.from_numpy(largest), logits.amax(-1))
    assert trainer.preprocess_logits_for_metrics is hook


def test_metrics_may_predict_once_more(tmp_path):
    rows = [{"input_ids": list(range(3, 12)), "labels": list(range(3, 12))}] * 2
    found = []

    def metrics(prediction):
        found.append(prediction.predictions)
        if len(found) == 1:
            trainer.predict(rows)
        return {}

    trainer = make_trainer(tmp_path, preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), compute_metrics=metrics)
    trainer.data_collator = pad
    trainer.evaluate(rows)
    assert found[0].shape == (2, 9) and (found[0] == found[1]).all()


def test_what_reads_whole_logits_is_refused_beside_it(tmp_path):
    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **more):
            return super().compute_loss(model, inputs, return_outputs, **more)

    hook = dict(compute_metrics=token_accuracy, preprocess_logits_for_metrics=likeliest)
    with pytest.raises(trireme.ConfigError, match="got no preprocess_logits_for_metrics"):
        make_trainer(tmp_path, compute_metrics=token_accuracy)
    with pytest.raises(trireme.ConfigError, match="got compute_loss_func"):
        make_trainer(tmp_path, **hook, compute_loss_func=own_loss)
    with pytest.raises(trireme.ConfigError, match="got label_smoothing_factor"):
        make_trainer(tmp_path, **hook, label_smoothing_factor=0.1)
    with pytest.raises(trireme.ConfigError, match="got Own with a compute_loss of its own"):
        make_trainer(tmp_path, Own, **hook)
    trainer = make_trainer(tmp_path, model=make_model().model, **hook)
    with pytest.raises(trireme.ConfigError, match="the model gave no logits"):
        trainer.predict(trainer.eval_dataset)


class OwnDPO(trl.DPOTrainer):
    pass


def test_a_trainer_without_such_a_hook_is_refused_by_name():
    for base in (trl.DPOTrainer, OwnDPO):
        with pytest.raises(trireme.ConfigError, match=f"got {base.__name__}, and trl's DPOTrainer takes no preprocess_logits_for_metrics"):
            check_hook_by_token(types.SimpleNamespace(), base)


def test_an_evaluation_is_advised_what_its_trainer_can_do():
    has = dict(compute_loss_func=None, label_smoother=None, preprocess_logits_for_metrics=None)
    for base, more, words in (
        (transformers.Trainer, {}, "a preprocess_logits_for_metrics that gives it and with_sequence_parallel"),
        (transformers.Trainer, dict(preprocess_logits_for_metrics=likeliest), "its preprocess_logits_for_metrics that gives it and with_sequence"),
        (transformers.Trainer, dict(compute_loss_func=own_loss), "not for it (compute_loss_func"),
        (trl.SFTTrainer, dict(label_smoother=own_loss), "not for it (label_smoothing_factor"),
        (trl.DPOTrainer, {}, "not for it (DPOTrainer"),
    ):
        assert words in advice_on_logits(types.SimpleNamespace(**{**has, **more}), base)


def test_logits_of_more_dimensions_are_told_too(monkeypatch):
    monkeypatch.setattr("trireme.whole_batches.LOGITS_TOLD_BYTES", 100)
    whole = WholeBatches(None, trireme.SequenceGroup.alone(), 1)
    with whole.logits_wanted(True, stay=False, advice="Do this."), pytest.warns(match=r"of \[2, 9, 3, 5\] on every rank, 1080 bytes .*Do this"):
        whole._tell_of_logits(torch.zeros(2, 4, 3, 5), 9)
