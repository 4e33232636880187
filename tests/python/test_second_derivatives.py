"""Gradients of gradients: refused, in place of values that lack what goes through attention, losses and tiles."""

import contextlib

import pytest
import torch
import trireme
from test_parallelize import make_batch, make_model

WAYS = {
    "attention": lambda model: trireme.parallelize(model, trireme.SequenceGroup.alone(), whole_batches=True),
    "fused_loss": trireme.fused_loss,
    "tile_mlp": lambda model: trireme.tile_mlp(model, tokens_per_tile=8),
    "loss": lambda model: contextlib.nullcontext(),
}


def loss_of(way, model, batch):
    if way != "loss":
        return model(**batch).loss
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    return trireme.loss(model(**{name: value for name, value in batch.items() if name != "labels"}).logits, targets, trireme.SequenceGroup.alone())


@pytest.mark.parametrize("way", WAYS)
def test_are_refused_and_first_ones_stay(way):
    model, batch = make_model("llama"), make_batch("plain", "llama")
    parameters = list(model.parameters())
    with WAYS[way](model):
        expected = torch.autograd.grad(loss_of(way, model, batch), parameters)
        gradients = torch.autograd.grad(loss_of(way, model, batch), parameters, create_graph=True)
        assert all((gradient - first).abs().max() <= 1e-5 * first.abs().max() for gradient, first in zip(gradients, expected))
        with pytest.raises(RuntimeError, match="a gradient of a gradient"):
            sum(gradient.square().sum() for gradient in gradients).backward()
