"""A model of transformers on shards: its attention is Trireme's while a `with` block lasts, and no other model's.

    model(input_ids_Bs, position_ids_Bs)  -> every attention layer runs ulysses_attention over the group
                                          -> logits_BsV of this rank's tokens

The model's configuration is replaced by a copy that names an attention of its own in transformers' AttentionInterface;
leaving the block puts the old one back. What a layer sees comes through the mask that transformers hands to it
(transformers_mask.py), so that checkpointed layers that run again in backward find it too.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
from typing import Iterator

import torch

from .attention import ulysses_attention
from .errors import ConfigError
from .sequence_group import Group, SequenceGroup, sequence_group
from .sequence_of_call import SequenceOfCall, sequence_of_call
from .token_mixing import refuse_token_mixing
from .transformers_mask import SeenKeys, read_mask_function

TESTED_TRANSFORMERS = "5.23."
_numbers = itertools.count()  # of names in the AttentionInterface

# What layers hand to attention and Trireme may ignore: it is in the mask, or about other things than attention.
_IGNORED = {
    "attention_mask", "cache_position", "deterministic", "is_causal", "labels", "logits_to_keep", "num_items_in_batch", "output_attentions",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "shift_labels", "sliding_window", "use_cache",
}  # fmt: skip
# Arguments of the model.
_NOT_ON_SHARDS = (
    "labels", "past_key_values", "use_cache", "output_router_logits", "output_attentions", "encoder_hidden_states",
)  # fmt: skip
# Of attention.
_REFUSED = {
    "s_aux": "attention sinks (gpt-oss)",
    "softcap": "soft-capped scores",
    "position_bias": "a bias of positions on the scores",
    "cu_seq_lens_q": "cu_seq_lens of flash attention; give position_ids that restart at 0 in their place",
}


@contextlib.contextmanager
def parallelize(model: torch.nn.Module, group: Group = None) -> Iterator[torch.nn.Module]:
    """``with trireme.parallelize(model, sp_group): model(**shard)``: the model on this rank's tokens. Collective.

    model: a PreTrainedModel (or a module that holds one, wrapped as it is) whose attention goes through transformers'
        AttentionInterface. Its forward takes shards of trireme.shard: ``input_ids`` or ``inputs_embeds`` [B, s, ...],
        ``position_ids`` [B, s] that restart where a packed document begins (made where none are given), and an
        ``attention_mask`` [B, s] for padding at a sample's ends.
    group: the ranks that share each sample.

    Take the loss by trireme.loss: a loss that the model computes from ``labels`` would be a shard's alone, so labels
    are refused. Every rank of the group calls the model in the same order, forward and backward. Backward belongs into
    the block too: layers that are checkpointed run again in it. Refused by name: models that mix tokens outside attention, attention sinks, soft-capped scores,
    attention dropout, caches, router losses, chunked and custom masks.
    """
    import transformers

    if not transformers.__version__.startswith(TESTED_TRANSFORMERS):
        raise ConfigError(
            f"trireme.parallelize: got transformers {transformers.__version__}, expected {TESTED_TRANSFORMERS}x, whose masks "
            "and attention interface it reads; other versions are refused"
        )
    shared = sequence_group(group)
    attention = _Attention(shared)
    target = next((m for m in model.modules() if isinstance(m, transformers.PreTrainedModel)), None)
    if target is None:
        raise ConfigError(f"trireme.parallelize: got {type(model).__name__}, which holds no PreTrainedModel")
    _check_config(target.config)
    with contextlib.ExitStack() as undo:
        _register(attention, undo)
        _use(model, attention.name, undo)
        embed = target.get_input_embeddings()
        if not isinstance(embed, torch.nn.Embedding):
            raise ConfigError(f"trireme.parallelize: {type(target).__name__} has no table of token embeddings, so it is refused")
        before = target.register_forward_pre_hook(attention.before_forward, with_kwargs=True, prepend=True)
        undo.callback(before.remove)
        after = target.register_forward_hook(attention.after_forward, always_call=True)
        undo.callback(after.remove)
        attention.probing = True
        refuse_token_mixing(target, embed, lambda ids: target(input_ids=ids))
        attention.probing = False
        if attention.calls == 0:
            raise ConfigError(
                f"trireme.parallelize: no attention of {type(target).__name__} went through transformers' "
                "AttentionInterface, so it is refused"
            )
        if "position_ids" not in inspect.signature(target.forward).parameters:
            raise ConfigError(f"trireme.parallelize: {type(target).__name__} takes no position_ids, so it is refused")
        yield model


def _check_config(config) -> None:
    for part in _configs(config):
        if getattr(part, "output_router_logits", False):
            raise ConfigError(
                "trireme.parallelize: output_router_logits is set; the router's loss is over all tokens, and the model would "
                "take it over a shard's: set it to False"
            )
        if getattr(part, "is_encoder_decoder", False):
            raise ConfigError("trireme.parallelize: an encoder-decoder attends across two sequences: it is refused")


def _configs(config):
    yield config
    for value in vars(config).values():
        if hasattr(value, "_attn_implementation"):
            yield from _configs(value)


def _register(attention: _Attention, undo: contextlib.ExitStack) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(attention.name, attention.attend)
    undo.callback(AttentionInterface._global_mapping.pop, attention.name)
    AttentionMaskInterface.register(attention.name, attention.make_mask)
    undo.callback(AttentionMaskInterface._global_mapping.pop, attention.name)


def _use(model: torch.nn.Module, name: str, undo: contextlib.ExitStack) -> None:
    """Copies of the configurations, for models may share one; parts of one model that share one still do."""
    memo: dict = {}
    for module in model.modules():
        config = module.__dict__.get("config")
        if config is None or not hasattr(config, "_attn_implementation"):
            continue
        own = copy.deepcopy(config, memo)
        for part in _configs(own):
            part._attn_implementation_internal = name
        module.config = own
        undo.callback(setattr, module, "config", config)


class _Attention:
    """What transformers calls: one for each `with` block."""

    def __init__(self, shared: SequenceGroup):
        self.name = f"trireme_{next(_numbers)}"
        self.shared = shared
        self.probing = False  # attention mixes no tokens (token_mixing.py)
        self.calls = 0  # of attention
        self._sequence: SequenceOfCall | None = None

    def before_forward(self, module, arguments, keywords):
        """Learns what the ranks hold together, once a pass. Everything reaches the model by name."""
        signature = inspect.signature(module.forward).parameters
        given = inspect.signature(module.forward).bind_partial(*arguments, **keywords).arguments
        rest = next((name for name, parameter in signature.items() if parameter.kind is parameter.VAR_KEYWORD), "")
        given.update(given.pop(rest, {}))
        for name in _NOT_ON_SHARDS:
            if given.get(name) is not None and given[name] is not False:
                advice = "take trireme.loss(logits, shift_labels, group)" if name == "labels" else "leave it out"
                raise ConfigError(f"trireme.parallelize: the model was called with {name}, which is wrong on a shard: {advice}")
        tokens = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
        if not torch.is_tensor(tokens):
            raise ConfigError("trireme.parallelize: the model was called with neither input_ids nor inputs_embeds")
        shared = SequenceGroup.alone() if self.probing else self.shared
        self._sequence, positions = sequence_of_call(
            shared, tokens, given.get("position_ids"), given.get("attention_mask")
        )
        if "position_ids" in signature:
            given["position_ids"] = positions
        if "use_cache" in signature:
            given["use_cache"] = False
        return (), given

    def after_forward(self, _module, _arguments, _output):
        self._sequence = None

    def make_mask(self, q_length=None, kv_length=None, *, mask_function, **_arguments):
        """As a function of AttentionMaskInterface: what layers get as their attention_mask."""
        if self._sequence is None:
            raise ConfigError("trireme.parallelize: a part of the model was called by itself; call the model that was given")
        if q_length != kv_length:
            raise ConfigError(f"trireme.parallelize: {q_length} queries see {kv_length} keys (a cache, a prefix): it is refused")
        causal, window = read_mask_function(mask_function)
        return SeenKeys(causal, window, self._sequence)

    def attend(self, module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **keywords):
        """As a function of AttentionInterface: q [B, H, s, D], k, v [B, K, s, D] -> o [B, s, H, D], no weights."""
        name, mask = type(module).__name__, attention_mask
        self._check_call(name, module, mask, dropout, keywords)
        self.calls += 1
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        if self.probing:  # of each token alone
            repeat = q.shape[2] // k.shape[2]
            return q + (k + v).repeat_interleave(repeat, 2), None
        sequence = mask.sequence
        o = ulysses_attention(
            q,
            k,
            v,
            sequence.shared,
            lengths=sequence.lengths,
            cu_seqlens=sequence.borders(mask.causal) or None,
            window=mask.window,
            causal=mask.causal,
            scale=scaling,
        )
        return o, None

    def _check_call(self, name, module, mask, dropout, keywords) -> None:
        if not isinstance(mask, SeenKeys):
            raise ConfigError(
                f"trireme.parallelize: {name} attends without a mask made by transformers' masking_utils, got "
                f"{type(mask).__name__}: it is refused"
            )
        if dropout:
            raise ConfigError(f"trireme.parallelize: {name} drops out attention weights ({dropout}): set attention_dropout to 0")
        for word, value in keywords.items():
            if value is not None and word not in _IGNORED:
                what = _REFUSED.get(word, f"an argument that Trireme does not know, {word}")
                raise ConfigError(f"trireme.parallelize: {name} asks its attention for {what}: it is refused")
        window, causal = keywords.get("sliding_window"), keywords.get("is_causal")
        causal = getattr(module, "is_causal", None) if causal is None else causal
        if window not in (None, mask.window) or causal not in (None, mask.causal):
            raise ConfigError(
                f"trireme.parallelize: {name} says window {window} and is_causal {causal}, its mask says {mask.window} and "
                f"{mask.causal}: it is refused"
            )
