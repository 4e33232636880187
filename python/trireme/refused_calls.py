"""Calls of a model that are refused while `parallelize` lasts: what a shard, or Trireme's attention, has not."""

from __future__ import annotations

from typing import Any

import torch

from .errors import ConfigError
from .image_batches import has_images

_OF_GENERATION = ("past_key_values", "cache", "logits_to_keep")
_REFUSED = (*_OF_GENERATION, "use_cache", "output_attentions", "encoder_hidden_states")


def refuse_call(model: torch.nn.Module, given: dict[str, Any], attention_name: str, whole_batches: bool) -> None:
    """given: what it was called with, by name. attention_name: the one in its configuration since the block began."""
    if getattr(model.get_input_embeddings(), "neftune_noise_alpha", None):  # a trainer sets it when it begins
        raise ConfigError(
            "trireme.parallelize: got NEFTune, whose noise is drawn by the tokens of a call, and these are a shard's: it is refused; leave "
            "neftune_noise_alpha out"
        )
    if (chosen := model.config.get_text_config()._attn_implementation) != attention_name:
        raise ConfigError(
            f"trireme.parallelize: within the block the model's attention was set to {chosen!r}, which sees this rank's tokens alone: choose it "
            "before the block, or not at all"
        )
    wrong = [name for name in _REFUSED if torch.is_tensor(given.get(name)) or given.get(name)]
    if wrong:
        raise ConfigError(
            f"trireme.parallelize: the model was called with {wrong[0]}, which is wrong on a shard: leave it out"
            + ("; generate() and PEFT's prefix tuning give it: generate after the block, and tune prompts" if wrong[0] in _OF_GENERATION else "")
        )
    if not whole_batches and given.get("labels") is not None:
        raise ConfigError(
            "trireme.parallelize: the model was called with labels, which is wrong on a shard: take trireme.loss(logits, "
            "shift_labels, group), or give whole batches (whole_batches=True)"
        )
    if given.get("mm_encoder_outputs") is not None:
        raise ConfigError("trireme.parallelize: got mm_encoder_outputs, which are not shared: give pixel_values, of which the model makes them")
    if not whole_batches and has_images(given):
        raise ConfigError(
            "trireme.parallelize: the model was called with images beside a shard, whose tokens they need all: give whole batches "
            "(whole_batches=True)"
        )
    if not any(torch.is_tensor(given.get(name)) for name in ("input_ids", "inputs_embeds")):
        raise ConfigError("trireme.parallelize: the model was called with neither input_ids nor inputs_embeds")
