"""Twenty optimizer steps of a small model: alone in one process by plain torch, and on shards under a wrapper.

Each step has two micro-batches (accumulation) for each data rank, of unlike lengths and kinds. What both give:
Course(losses [steps], norms [steps], gradients of the first step, value and logits of an evaluation afterwards).
"""

import contextlib
import dataclasses

import torch
import trireme
from test_parallelize import make_model

STEPS, ACCUMULATION, CLIP = 20, 2, 1.0
MODEL = "qwen2, windows of single layers"  # 4 query heads, 2 of keys and values, biases
VOCABULARY = 67


@dataclasses.dataclass
class Course:
    losses: list
    norms: list
    gradients: dict
    evaluation: float
    logits: torch.Tensor


def make_batch(number, data_rank):
    """By turns: plain, packed, padded, targets in the first tokens alone (so that the last ranks have none), few."""
    generator = torch.Generator().manual_seed(100 * number + data_rank)
    kind = ("plain", "packed", "padded", "few targets", "holes")[number % 5]
    tokens, samples = 19 + (7 * number) % 11, 1 if kind == "packed" else 2
    batch = {"input_ids": torch.randint(3, VOCABULARY, (samples, tokens), generator=generator)}
    labels = batch["labels"] = batch["input_ids"].clone()
    if kind == "packed":
        first = 4 + (number + data_rank) % 9
        batch["position_ids"] = torch.cat([torch.arange(first), torch.arange(tokens - first)])[None]
        labels[0, first] = -100
    if kind == "padded":
        batch["attention_mask"] = torch.ones_like(labels)
        for sample in range(samples):
            padding = slice(tokens - 3 - 2 * sample - data_rank, None)
            batch["attention_mask"][sample, padding] = 0
            labels[sample, padding] = -100
    if kind == "few targets":
        labels[:, 4 + data_rank :] = -100
    if kind == "holes":
        labels[torch.rand(labels.shape, generator=generator) < 0.5] = -100
    return batch


def batches_of_step(step, data_rank):
    return [make_batch(ACCUMULATION * step + micro, data_rank) for micro in range(ACCUMULATION)]


EVALUATION = 1003  # a batch that is never trained on


def cross_entropy_sum(logits, labels):
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    value = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return value, int((targets != -100).sum())


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def alone(data_ranks):
    """The truth: nothing of Trireme, every micro-batch of every data rank in one process."""
    model = make_model(MODEL)
    optimizer = optimizer_of(model)
    losses, norms, gradients = [], [], {}
    for step in range(STEPS):
        batches = [batch for rank in range(data_ranks) for batch in batches_of_step(step, rank)]
        sums = []
        for batch in batches:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            sums.append(cross_entropy_sum(model(**inputs, use_cache=False).logits, batch["labels"]))
        loss = sum(value for value, _ in sums) / sum(number for _, number in sums)
        loss.backward()
        gradients = gradients or {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    batch = make_batch(EVALUATION, 0)
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits
        value, number = cross_entropy_sum(logits, batch["labels"])
    return Course(losses, norms, gradients, value.item() / number, logits)


def on_shards(wrapper, sequence, everyone, data_rank):
    """The same under `wrapper`: sequence is the group that shares a sample, everyone that of all ranks."""
    losses, norms, gradients = [], [], {}
    with trireme.parallelize(wrapper.model, sequence):
        for step in range(STEPS):
            shards = [trireme.shard(batch, sequence) for batch in batches_of_step(step, data_rank)]
            targets = [shard.pop("shift_labels") for shard in shards]
            number = sum(trireme.count_targets(each, everyone) for each in targets)
            loss = 0
            for micro, (shard, target) in enumerate(zip(shards, targets)):
                with wrapper.accumulating() if micro + 1 < ACCUMULATION else contextlib.nullcontext():
                    logits = wrapper.model(**shard).logits
                    value = trireme.loss(
                        logits, target, everyone, num_targets=number, averaged_over=wrapper.averaged_over
                    )
                    wrapper.backward(value)
                loss += value.item()
                if step == 0 and micro + 1 == ACCUMULATION:
                    gradients = wrapper.gradients()
                wrapper.after_micro_batch()
            norms.append(wrapper.step())
            losses.append(loss)
        wrapper.model.eval()
        shard = trireme.shard({name: make_batch(EVALUATION, 0)[name] for name in ("input_ids", "labels")}, sequence)
        target = shard.pop("shift_labels")
        with torch.no_grad():
            logits = wrapper.model(**shard).logits
            evaluation = trireme.loss(logits, target, sequence).item()
    return Course(losses, norms, gradients, evaluation, trireme.gather(logits, sequence))


def compare(truth, got):
    for step, (expected, loss) in enumerate(zip(truth.losses, got.losses, strict=True)):
        assert abs(loss - expected) <= 5e-6 * abs(expected), f"step {step}: loss {loss}, alone {expected}"
    for step, (expected, norm) in enumerate(zip(truth.norms, got.norms, strict=True)):
        assert abs(norm - expected) <= 1e-4 * expected, f"step {step}: gradient norm {norm}, alone {expected}"
    assert got.gradients.keys() == truth.gradients.keys()
    for name, expected in truth.gradients.items():
        error, largest = (got.gradients[name] - expected).abs().max().item(), expected.abs().max().item()
        assert error <= 1e-4 * largest, f"{name}: {error} of {largest}"
    assert abs(got.evaluation - truth.evaluation) <= 5e-6 * truth.evaluation, (got.evaluation, truth.evaluation)
    error = (got.logits - truth.logits).abs().max().item()
    assert error <= 1e-4 * truth.logits.abs().max().item(), f"logits of the evaluation: {error}"
