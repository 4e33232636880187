"""Whole batches with images: the model reads these whole on every rank, and its language model is cut along the sequence.

    input_ids [B, S], pixel_values  --embedding, image tower, whole on each rank-->  inputs_embeds [B, S, M]
                                    --cut-->  [B, s, M]  --language model over the ranks-->  hidden states [B, s, M]

Which tokens an image is, and their positions, depend on the whole sample; so these stay the model's own. The gradient of a rank's slice
goes back through the whole tower, so that the sum over the ranks is the gradient of one process, as for every parameter.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch

from .batch import take_spans
from .errors import ConfigError
from .sequence_of_call import IMAGES, SequenceOfCall

# Of outputs, the same on every rank.
OUTPUTS = ("image_hidden_states",)


def has_images(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is not None for name in IMAGES)


def language_model_in(model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The module that reads embeddings in a model that reads images too; None where the model is one itself."""
    if model.config.get_text_config() is model.config:
        return None
    decoder = model.get_decoder()
    return None if decoder in (model, model.base_model) else decoder


def check_images(model: torch.nn.Module, given: Mapping[str, Any]) -> None:
    """Of a whole batch that has some."""
    if language_model_in(model) is None:
        raise ConfigError(
            f"trireme.parallelize: got images, and {type(model).__name__} has no language model of its own that could be cut: images are refused"
        )
    if given.get("input_ids") is None:
        raise ConfigError("trireme.parallelize: got images without input_ids, which tell where they belong: give input_ids, not inputs_embeds")
    for name in IMAGES:
        if given.get(name) is not None and not torch.is_tensor(given[name]):
            raise ConfigError(f"trireme.parallelize: got {name} of {type(given[name]).__name__}, expected a tensor")


def counted_once(output: Any, share: float) -> Any:
    """A tensor, or several, that every rank has whole and goes on from alike: gradients of all ranks together count it `share` x ranks times."""
    if isinstance(output, (list, tuple)):
        return type(output)(counted_once(part, share) for part in output)
    return output.detach() + (output - output.detach()) * share if output.requires_grad else output


def cut_for_language_model(keywords: dict[str, Any], sequence: SequenceOfCall) -> dict[str, Any]:
    """What the language model gets of what the model around it gives, by name."""
    shared, tokens = sequence.shared, sum(sequence.lengths)
    spans = shared.spans(tokens)

    keywords = {name: value for name, value in keywords.items() if value is not None}
    if "inputs_embeds" not in keywords:
        raise ConfigError("trireme.parallelize: the language model reads images by cross-attention: images are refused, text alone is not")
    mask, positions = keywords.get("attention_mask"), keywords.get("position_ids")
    if mask is not None and (not torch.is_tensor(mask) or mask.dim() != 2):
        raise ConfigError(
            "trireme.parallelize: the masks are made outside the language model, where tokens of an image may see each other: images are refused, "
            "text alone is not"
        )
    if positions is None:
        batch, device = keywords["inputs_embeds"].shape[0], keywords["inputs_embeds"].device
        positions = torch.arange(tokens, device=device).expand(batch, tokens)
    of_tokens = {"inputs_embeds": 1, "attention_mask": 1, "position_ids": -1, "visual_pos_masks": 1}
    chosen = {name: take_spans(value, spans, of_tokens[name]) for name, value in {**keywords, "position_ids": positions}.items() if name in of_tokens}
    if "attention_mask" in chosen and bool(mask.all()):
        del chosen["attention_mask"]
    deep = keywords.get("deepstack_visual_embeds")
    if deep is not None:  # [visual tokens, M] each, in the order of samples
        visual = keywords["visual_pos_masks"]
        number = visual.flatten().cumsum(0).view(visual.shape) - 1
        here = take_spans(number, spans, 1)[chosen["visual_pos_masks"]]
        chosen["deepstack_visual_embeds"] = [embeds[here] for embeds in deep]
    for name, value in keywords.items():
        if name not in (*chosen, "attention_mask", "shift_labels") and torch.is_tensor(value) and value.dim() > 1 and tokens in value.shape:
            raise ConfigError(
                f"trireme.parallelize: the model gives its language model {name} of {tuple(value.shape)}, which Trireme cannot cut: it is refused"
            )
    return {**{name: value for name, value in keywords.items() if name != "attention_mask"}, **chosen}
