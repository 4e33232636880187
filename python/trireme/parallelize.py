"""A model of transformers over ranks: its attention is Trireme's while a `with` block lasts, and no other model's.

    model(input_ids_Bs, position_ids_Bs)  -> every attention layer runs ulysses_attention over the group
                                          -> logits_BsV of this rank's tokens

The model's configuration is replaced by a copy (attention_in_config.py) that names an attention of its own in transformers'
AttentionInterface. What a layer of attention sees comes through the mask that transformers hands to it (transformers_mask.py), so that
checkpointed layers that run again in backward find it too.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Callable, Iterator

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from . import _operators
from .attention_in_config import configs_in, use_attention
from .errors import ConfigError
from .gated_delta_net import share_delta_nets
from .layer_attention import NAME_OF_ATTENTION, LayerAttention
from .model_calls import ModelCalls, wants_router_logits
from .model_in_use import called_for, pretrained_model_in, vocabulary_of
from .peft_adapters import call_without_prompts, refuse_adapters, tunes_prompts
from .refused_models import refuse_attention_of_the_callers, refuse_head_of_its_own, refuse_other_models, refuse_unsaid_average
from .rotary import see_longest_position
from .same_weights import refuse_other_weights
from .sequence_group import Group, sequence_group
from .tested_transformers import refuse_untested_transformers
from .token_mixing import refuse_own_positions, refuse_token_mixing


@contextlib.contextmanager
def parallelize(
    model: torch.nn.Module, group: Group = None, *, whole_batches: bool = False, averaged_over: int = 1
) -> Iterator[torch.nn.Module]:
    """``with trireme.parallelize(model, sp_group): model(...)``: the model over ranks that share each sample. Collective.

    model: a PreTrainedModel (or a module that holds one, wrapped as it is) whose attention goes through transformers'
        AttentionInterface.
    group: the ranks that share each sample.
    whole_batches: False: the model takes this rank's shard (trireme.shard): ``input_ids`` or ``inputs_embeds`` [B, s, ...],
        ``position_ids`` [B, s] that restart where a packed document begins (made where none are given), and an
        ``attention_mask`` [B, s] for padding at a sample's ends. Take the loss by trireme.loss; labels are refused.
        True: it takes the whole batch [B, S], the same on every rank, with ``labels`` and ``num_items_in_batch`` as any
        loop gives them, and returns what the model alone would: the loss of all tokens (then no logits, which
        would be [B, S, V] on every rank), or without labels the logits of all tokens. What the caller adds to the loss beside
        the model (a head of its own, a penalty on weights) every rank has whole: divide it by group.size() where gradients are summed.
    averaged_over: over how many ranks of the group gradients are averaged afterwards: its size under DDP, FSDP or ZeRO;
        1 where they are summed (trireme.sum_gradients). With shards it is about a router's loss alone; trireme.loss has its own.

    Every rank of the group calls the model in the same order, forward and backward. Backward belongs into the block too: layers
    that are checkpointed run again in it. Open the block once, around the loop: its beginning runs the model a few times and reads all weights. Refused by name: models that mix tokens outside attention (but for Gated DeltaNet, which
    is shared too: gated_delta_net.py), ranks whose weights differ, attention dropout, layerdrop, NEFTune, caches, chunked and custom masks.
    """
    refuse_untested_transformers("trireme.parallelize", "whose masks and attention interface it reads; other versions are refused")
    target = pretrained_model_in(model, "trireme.parallelize")
    shared = sequence_group(group)
    if not 1 <= averaged_over <= shared.size:
        raise ConfigError(
            f"trireme.parallelize: got averaged_over={averaged_over} with a group of {shared.size}, expected 1 to {shared.size}: over how many of "
            "these ranks gradients are averaged (of all ranks of the run, data ranks too, it is trireme.loss that asks)"
        )
    summed = averaged_over == 1 and shared.size > 1
    if summed and whole_batches:
        refuse_unsaid_average(model, shared, "whole_batches=True")
        refuse_head_of_its_own(model, target)
    if summed and not whole_batches and wants_router_logits(target):
        refuse_unsaid_average(model, shared, "a router's loss (output_router_logits)")
    if not whole_batches and tunes_prompts(model):
        raise ConfigError(
            f"trireme.parallelize: got a {type(model).__name__} with prompt tuning, which would put its tokens before each rank's shard: give "
            "whole batches (whole_batches=True)"
        )
    with over_ranks(model, ModelCalls(target, shared, averaged_over, whole_batches)) as refuse_what_differs:
        refuse_what_differs()
        yield model


@contextlib.contextmanager
def over_ranks(model: torch.nn.Module, calls: ModelCalls) -> Iterator[Callable[[], None]]:
    """The same for a model whose calls are given. Yields what looks at it, by running it: to be called once it can run."""
    _operators.load()  # a build that does not fit is refused before the first step
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ConfigError(
            "trireme.parallelize: got a model under FullyShardedDataParallel (FSDP 1), whose parameters it takes away between calls: it is refused; "
            "use torch.distributed.fsdp.fully_shard (FSDP 2)"
        )
    target = calls.model
    if str(target.config._attn_implementation).startswith(NAME_OF_ATTENTION):
        raise ConfigError("trireme.parallelize: the model is in such a block already: leave one of them out")
    if any(getattr(part, "is_encoder_decoder", False) for part in configs_in(target.config)):
        raise ConfigError("trireme.parallelize: an encoder-decoder attends across two sequences: it is refused")
    refuse_adapters(model)
    refuse_other_models(model, target, calls.whole is not None)
    refuse_attention_of_the_callers(target)
    vocabulary = vocabulary_of(target)
    if vocabulary is None:
        raise ConfigError(f"trireme.parallelize: {type(target).__name__} has no table of token embeddings, so it is refused")
    if any(getattr(module, "layerdrop", 0) for module in target.modules()):
        raise ConfigError(
            "trireme.parallelize: got a layerdrop above 0: ranks that skip different layers would mix them, so it is refused; build the "
            "model with layerdrop=0"
        )
    attention = LayerAttention(calls)
    with contextlib.ExitStack() as undo:
        calls.attention_name = attention.register(undo)
        use_attention(model, calls, undo)
        calls.hook(undo)
        if tunes_prompts(model):
            call_without_prompts(calls, undo)
        share_delta_nets(calls, undo)
        see_longest_position(target, calls.longest_position, undo)
        yield functools.partial(_refuse_what_differs, model, vocabulary, attention)


def _refuse_what_differs(model: torch.nn.Module, vocabulary: int, attention: LayerAttention) -> None:
    target = attention.calls.model
    called = called_for(model, target)
    refuse_other_weights(model, attention.calls.shared)

    def run(ids, **more):
        return called(input_ids=ids, **more)

    name = type(target).__name__
    attention.calls.probing = True
    try:
        refuse_token_mixing(target, vocabulary, run)
        if attention.layers_seen == 0 and not attention.calls.gives_sequence:
            raise ConfigError(
                f"trireme.parallelize: no attention of {name} went through transformers' AttentionInterface, so it is refused"
            )
        if "position_ids" not in inspect.signature(target.forward).parameters:
            raise ConfigError(f"trireme.parallelize: {name} takes no position_ids, so it is refused")
        attention.calls.counts_by_mask = refuse_own_positions(target, vocabulary, run)
    finally:
        attention.calls.probing = False
    attention.calls.watch(model)
