"""One training step with the package trireme over the same DeepSpeed engine, by docs/huggingface.md."""

import torch
import torch.distributed as dist
import trireme
from deepspeed_alst import engine_of, gradients_of


def train_step(model, batch, zero_stage):
    """(loss, gradients by name) of one micro-batch that every rank has whole."""
    engine = engine_of(model, zero_stage)
    shard = trireme.shard(batch)
    targets = shard.pop("shift_labels")
    with trireme.parallelize(engine):
        loss = trireme.loss(engine(**shard).logits, targets, averaged_over=dist.get_world_size())
        engine.backward(loss)
    return loss.item(), gradients_of(engine)


def evaluate(model, batch, zero_stage):
    engine = engine_of(model, zero_stage)
    engine.eval()
    shard = trireme.shard(batch)
    targets = shard.pop("shift_labels")
    with torch.no_grad(), trireme.parallelize(engine):
        return trireme.loss(engine(**shard).logits, targets).item()
