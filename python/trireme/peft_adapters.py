"""What PEFT puts around and into a model: adapters that need the whole sample, prompts that come before it."""

from __future__ import annotations

import contextlib
import functools
from typing import Iterator

import torch

from .errors import ConfigError
from .model_calls import ModelCalls
from .model_in_use import replace_forward

_REFUSED = {
    "CPT": "takes a loss of its own of the whole sample's logits",
    "POLY": "chooses its adapters by task_ids, which the calls that look at the model do not have",
}


def adapters_in(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, dict]]:
    """Modules that have adapters, with the configurations of these."""
    for module in model.modules():
        if isinstance(adapters := getattr(module, "peft_config", None), dict):
            yield module, adapters


def tunes_prompts(model: torch.nn.Module) -> bool:
    return any(getattr(adapter, "is_prompt_learning", False) for _, adapters in adapters_in(model) for adapter in adapters.values())


def refuse_adapters(model: torch.nn.Module) -> None:
    for _, adapters in adapters_in(model):
        for name, adapter in adapters.items():
            kind = getattr(getattr(adapter, "peft_type", None), "value", None)
            why = _REFUSED.get(kind)
            if getattr(adapter, "alora_invocation_tokens", None):
                kind = "activated LoRA (alora_invocation_tokens)"
                why = "counts its tokens from the end of the whole sample, while its layers see a shard"
            if why is not None:
                raise ConfigError(
                    f"trireme.parallelize: got the adapter {name!r} of PEFT's {kind}, which {why}: it is refused; expected one that works token by "
                    "token (LoRA, IA3, ...), or prompt tuning with whole batches"
                )


def call_without_prompts(calls: ModelCalls, undo: contextlib.ExitStack) -> None:
    """PEFT's disable_adapter() of prompts calls the model's forward, beside the hooks of its call: while ``undo`` is open it calls the model."""
    forward = calls.model.forward

    @functools.wraps(forward)
    def within_a_call(*arguments, **keywords):
        return (calls.model if calls.sequence is None else forward)(*arguments, **keywords)

    replace_forward(calls.model, within_a_call, undo)
