"""One training step with DeepSpeed's Ulysses for Transformers (UlyssesSPAttentionHF, ALST), by its documented recipe.

    whole batch  --UlyssesSPDataLoaderAdapter-->  this rank's tokens  --engine, loss recipe-->  loss, gradients

Collective over all ranks of torch.distributed, which share the sample. DeepSpeed keeps its groups and the attention that
it replaces in globals; both are put back here.
"""

import contextlib

import torch
import torch.distributed.nn

LEARNING_RATE = 0.0


def engine_of(model, zero_stage, mpu=None, **options):
    """DeepSpeed's engine over all ranks; plain SGD, for gradients and not steps are compared."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": zero_stage},
        "zero_allow_untested_optimizer": True,
        **options,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mpu)[0]


def gradients_of(engine):
    """Every gradient, whole, as the optimizer will see it. Collective."""
    from deepspeed.utils import safe_get_full_grad

    whole = engine.zero_optimization_stage() > 0
    return {
        name: (safe_get_full_grad(parameter) if whole else parameter.grad).float().clone()
        for name, parameter in engine.module.named_parameters()
    }


@contextlib.contextmanager
def registered(model, batch, ranks):
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from deepspeed.utils import groups
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    try:
        yield UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation="sdpa",
            sequence_parallel_size=ranks,
            micro_batch_size=batch["input_ids"].shape[0],
            seq_length_is_variable=True,
        )
    finally:
        ALL_ATTENTION_FUNCTIONS._local_mapping.clear()
        ALL_ATTENTION_FUNCTIONS._local_mapping.update(before)
        parallel_state_sp._release_sequence_parallel_groups()
        groups.mpu = None


def weighted_loss(model, logits, shift_labels, group, skip_empty_shards):
    """The documented recipe: each rank's mean, gathered differentiably, weighted by valid targets.

    DeepSpeed's tutorial takes every rank's mean; Accelerate's page skips ranks without a valid target.
    """
    ranks = torch.distributed.get_world_size(group)
    loss = model.loss_function(logits=logits, labels=None, shift_labels=shift_labels, vocab_size=model.config.vocab_size)
    losses = torch.distributed.nn.functional.all_gather(loss, group=group)
    good = torch.distributed.nn.functional.all_gather((shift_labels != -100).view(-1).sum(), group=group)
    counted = [rank for rank in range(ranks) if not skip_empty_shards or good[rank] > 0]
    return sum(losses[rank] * good[rank] for rank in counted) / max(sum(good), 1)


@contextlib.contextmanager
def forward(model, batch, zero_stage, skip_empty_shards):
    import torch.distributed as dist
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter

    ranks = dist.get_world_size()
    batch = dict(batch)
    samples, tokens = batch["input_ids"].shape
    batch.setdefault("position_ids", torch.arange(tokens).repeat(samples, 1))
    with registered(model, batch, ranks) as mpu:
        engine = engine_of(model, zero_stage, mpu, sequence_parallel_size=ranks)
        group = mpu.get_sequence_parallel_group()
        loader = UlyssesSPDataLoaderAdapter(
            [batch], sp_rank=dist.get_rank(group), sp_group=group, sp_world_size=ranks, device=engine.device
        )
        engine.train(model.training)
        shard = next(loader)
        logits = engine(**shard, use_cache=False).logits
        yield engine, weighted_loss(engine.module, logits, shard["shift_labels"], group, skip_empty_shards)


def train_step(model, batch, zero_stage, skip_empty_shards=True):
    """(loss, gradients by name) of one micro-batch that every rank has whole; raises what DeepSpeed refuses."""
    with forward(model, batch, zero_stage, skip_empty_shards) as (engine, loss):
        engine.backward(loss)
        return loss.item(), gradients_of(engine)


def evaluate(model, batch, zero_stage):
    with torch.no_grad(), forward(model.eval(), batch, zero_stage, skip_empty_shards=True) as (_, loss):
        return loss.item()
