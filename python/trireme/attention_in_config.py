"""The configuration of a model while a block lasts: a copy that names Trireme's attention, put back at the block's end."""

from __future__ import annotations

import contextlib
import copy

import torch

from .image_batches import language_model_in
from .model_calls import ModelCalls


def configs_in(config):
    yield config
    for value in vars(config).values():
        if hasattr(value, "_attn_implementation"):
            yield from configs_in(value)


def use_attention(model: torch.nn.Module, calls: ModelCalls, undo: contextlib.ExitStack) -> None:
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
        parts = list(configs_in(own)) if language_model is None else [own, own.get_text_config()]
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
