"""A model of transformers over ranks: its attention is Trireme's while a `with` block lasts, and no other model's.

    model(input_ids_Bs, position_ids_Bs)  -> every attention layer runs ulysses_attention over the group
                                          -> logits_BsV of this rank's tokens

The model's configuration is replaced by a copy that names an attention of its own in transformers' AttentionInterface;
leaving the block puts the old one back. What a layer of attention sees comes through the mask that transformers hands to it
(transformers_mask.py), so that checkpointed layers that run again in backward find it too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from typing import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from . import _operators
from .errors import ConfigError
from .gated_delta_net import share_delta_nets
from .image_batches import language_model_in
from .layer_attention import NAME_OF_ATTENTION, LayerAttention
from .model_calls import ModelCalls, wants_router_logits
from .model_in_use import called_for, pretrained_model_in, pretrained_models_in, vocabulary_of
from .peft_adapters import adapters_in, call_without_prompts, refuse_adapters, tunes_prompts
from .rotary import see_longest_position
from .same_weights import refuse_other_weights
from .sequence_group import Group, SequenceGroup, sequence_group
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
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ConfigError(
            "trireme.parallelize: got a model under FullyShardedDataParallel (FSDP 1), whose parameters it takes away between calls: it is refused; "
            "use torch.distributed.fsdp.fully_shard (FSDP 2)"
        )
    summed = averaged_over == 1 and shared.size > 1
    if summed and whole_batches:
        _refuse_unsaid_average(model, shared, "whole_batches=True")
        _refuse_head_of_its_own(model, target)
    if summed and not whole_batches and wants_router_logits(target):
        _refuse_unsaid_average(model, shared, "a router's loss (output_router_logits)")
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
    target = calls.model
    if str(target.config._attn_implementation).startswith(NAME_OF_ATTENTION):
        raise ConfigError("trireme.parallelize: the model is in such a block already: leave one of them out")
    if any(getattr(part, "is_encoder_decoder", False) for part in _configs(target.config)):
        raise ConfigError("trireme.parallelize: an encoder-decoder attends across two sequences: it is refused")
    refuse_adapters(model)
    _refuse_other_models(model, target, calls.whole is not None)
    _refuse_attention_of_the_callers(target)
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
        _use(model, calls, undo)
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


def _refuse_other_models(model: torch.nn.Module, target: torch.nn.Module, whole_batches: bool) -> None:
    """Beside ``target``. In whole batches a frozen one, a teacher, runs as it is, on all tokens; ranks would share nothing of a trained one."""
    inside = set(target.modules())
    for name, other in pretrained_models_in(model).items():
        if other in inside or (whole_batches and not any(parameter.requires_grad for parameter in other.parameters())):
            continue
        raise ConfigError(
            f"trireme.parallelize: got {name} ({type(other).__name__}) beside the {type(target).__name__} that the ranks share"
            + (", and its parameters are trained" if whole_batches else ": it would see this rank's shard alone")
            + ". It is refused; expected one model of transformers, or in whole batches others that are frozen: open a block for each of them"
        )


def _refuse_attention_of_the_callers(target: torch.nn.Module) -> None:
    """One that was registered computes what plain attention does not, or nobody would have made it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    chosen = target.config.get_text_config()._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get(chosen)
    function = getattr(function, "func", function)
    if function is not None and not function.__module__.startswith("transformers."):
        raise ConfigError(
            f"trireme.parallelize: the model's attention is {chosen!r}, of {function.__module__}, which Trireme's would replace: choose one of "
            "transformers (model.set_attn_implementation('sdpa')) if it computes plain attention"
        )


def _refuse_unsaid_average(model: torch.nn.Module, shared: SequenceGroup, what: str) -> None:
    """Under a wrapper that averages over ranks of the group, gradients would be divided by their number."""
    own = set(dist.get_process_group_ranks(shared.process_group))
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = dist.get_process_group_ranks(module.process_group)
        elif isinstance(module, FSDPModule):
            ranks = next((p.device_mesh.mesh.flatten().tolist() for p in module.parameters() if isinstance(p, DTensor)), [])
        elif any(base.__name__ == "DeepSpeedEngine" for base in type(module).__mro__) and module.gradient_average:
            ranks = dist.get_process_group_ranks(module.seq_data_parallel_group)
        else:
            continue
        if len(averaged := own & set(ranks)) > 1:
            raise ConfigError(
                f"trireme.parallelize: got averaged_over=1 with {what}, and {type(module).__name__} averages gradients over {len(averaged)} ranks of "
                f"the group; expected averaged_over={len(averaged)}"
            )


def _refuse_head_of_its_own(model: torch.nn.Module, target: torch.nn.Module) -> None:
    """Each rank has the whole gradient of what follows the model, and only its tokens' of the model; prompts of PEFT come before it."""
    known = {id(parameter) for parameter in target.parameters()}
    for adapted, _adapters in adapters_in(model):
        known.update(id(parameter) for parameter in adapted.parameters())
    outside = [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in known]
    if outside:
        raise ConfigError(
            f"trireme.parallelize: got {outside[0]}, a trained parameter outside the {type(target).__name__}, with whole_batches=True and "
            "averaged_over=1: every rank has its whole gradient, and a sum over ranks would count it several times. Average gradients over the group "
            "and give averaged_over, as under DDP, or give parallelize the inner model, and divide the head's part of the loss by the group's size"
        )


def _configs(config):
    yield config
    for value in vars(config).values():
        if hasattr(value, "_attn_implementation"):
            yield from _configs(value)


def _use(model: torch.nn.Module, calls: ModelCalls, undo: contextlib.ExitStack) -> None:
    """Copies of the configurations, for models may share one; parts of one model that share one still do. What reads images keeps its attention,
    and so does what stands beside the model and sees whole batches; beside shards it is refused when it runs.
    """
    memo: dict = {}
    name, language_model = calls.attention_name, language_model_in(calls.model)
    cut = calls.model if language_model is None else language_model
    inside = set(cut.modules() if language_model is not None or calls.whole is not None else model.modules())
    for module in model.modules():
        config = module.__dict__.get("config")
        if config is None or not hasattr(config, "_attn_implementation"):
            continue
        if module not in inside and cut not in module.modules():
            continue
        own = copy.deepcopy(config, memo)
        parts = list(_configs(own)) if language_model is None else [own, own.get_text_config()]
        undo.callback(_put_back, module, config, own, dict(own.__dict__))
        for part in parts:
            if part._attn_implementation_internal != name:  # models that are made of the copy outlive the block
                undo.callback(setattr, part, "_attn_implementation_internal", part._attn_implementation_internal)
            part._attn_implementation_internal = name
        module.config = own


def _put_back(module: torch.nn.Module, config, own, before: dict) -> None:
    """The module's own configuration, with what was changed while the block lasted (resize_token_embeddings)."""
    for name, value in own.__dict__.items():
        if name != "_attn_implementation_internal" and not hasattr(value, "_attn_implementation") and before.get(name, before) != value:
            config.__dict__[name] = value
    module.config = config
