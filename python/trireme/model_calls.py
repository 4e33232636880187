"""What happens around each call of a model of transformers while `parallelize` lasts.

    shards mode:  batch [B, s] of this rank  -> model ->  outputs [B, s]
    whole mode:   batch [B, S]  -> shard -> model -> outputs [B, s] -> gather ->  outputs [B, S], the loss of all ranks

In both, the layers learn the sequence that the ranks hold together, and the logits of a mixture's router leave the body of
the model for all tokens [B * S, experts], so that its balancing loss is that of the whole sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from typing import Any, Optional

import torch
from torch.distributed.fsdp import FSDPModule

from .batch import gather_with_gradient
from .errors import ConfigError
from .image_batches import cut_for_language_model, has_images, language_model_in
from .gradient_sums import tell_average
from .model_in_use import takes_use_cache
from .refused_calls import refuse_call
from .rotary import reach_of_positions
from .same_weights import WatchedWeights
from .sequence_group import SequenceGroup
from .sequence_of_call import SequenceOfCall, sequence_of_shards
from .whole_batches import WholeBatches

# Models of transformers hand it on to their layers, with the rest of their keywords: a checkpointed layer that runs again in backward,
# when no call runs, gets it again.
SEQUENCE_KEYWORD = "trireme_sequence"


def wants_router_logits(model: torch.nn.Module) -> bool:
    """What a call gets that does not say."""
    return bool(getattr(model.config.get_text_config(), "output_router_logits", False))


class ModelCalls:
    """Hooks of one model: on the module that is called, and on its body (`base_model`) within."""

    def __init__(self, model: torch.nn.Module, shared: SequenceGroup, averaged_over: int, whole_batches: bool):
        self.model = model
        self.shared = shared
        self.averaged_over = averaged_over
        self.whole = WholeBatches(model, shared, averaged_over) if whole_batches else None
        self.counts_by_mask = False  # positions of the model, beside padding on the left
        self.gives_sequence = False  # as SEQUENCE_KEYWORD, to layers that mix tokens without attention
        self.weights = WatchedWeights()
        self.attention_name = ""  # in the model's configuration while the block lasts
        self._told_beyond = False
        self.probing = False  # the call is of whole samples on this rank alone, by attention that mixes no tokens
        self.sequence: Optional[SequenceOfCall] = None  # of the call that runs
        self._images = False  # the call has some: the model around the language model gets the whole batch
        self._mask_shard: Optional[torch.Tensor] = None  # what the body gets, where its head wants the whole mask

    def __deepcopy__(self, _memo):
        raise ConfigError(
            "trireme.parallelize: the model was copied within the block (copy.deepcopy, an average of weights, pickle), and the copy would hold what is "
            "undone at its end: copy it before"
        )

    __reduce_ex__ = __deepcopy__

    def hook(self, undo: contextlib.ExitStack) -> None:
        body = self.model.base_model
        if (language_model := language_model_in(self.model)) is not None:
            undo.callback(language_model.register_forward_pre_hook(self._before_language_model, with_kwargs=True, prepend=True).remove)
        if self.whole is not None:
            undo.enter_context(self.whole.losses())
        averaged = self.whole is not None or wants_router_logits(self.model)
        tell_average(self.model.parameters(), self.shared, self.averaged_over if averaged else 1)
        undo.callback(self.model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True).remove)
        undo.callback(body.register_forward_pre_hook(self._before_body, with_kwargs=True).remove)
        undo.callback(body.register_forward_hook(self._after_body).remove)
        # Before FSDP's, which rounds what the model gives.
        undo.callback(self.model.register_forward_hook(self._after, always_call=True, prepend=True).remove)

    @torch._disable_dynamo
    def _before(self, module, arguments, keywords):
        """Learns what the ranks hold together, once a call. Everything reaches the model by name."""
        self._mask_shard = None
        signature = inspect.signature(module.forward).parameters
        given = inspect.signature(module.forward).bind_partial(*arguments, **keywords).arguments
        rest = next((name for name, parameter in signature.items() if parameter.kind is parameter.VAR_KEYWORD), "")
        given.update(given.pop(rest, {}))
        refuse_call(self.model, given, self.attention_name, self.whole is not None)
        self._images = has_images(given)
        if self.whole is not None and not self.probing:
            given, self.sequence, mask = self.whole.cut(given, self.weights)
        else:
            tokens = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
            shared = SequenceGroup.alone() if self.probing else self.shared
            own = given.pop("position_ids", None)
            self.sequence, positions, mask = sequence_of_shards(shared, tokens, own, given.get("attention_mask"), self.weights)
            if own is not None or not self.probing:
                given["position_ids"] = positions
        if not self.probing:
            self._tell_beyond_positions()
        if self.counts_by_mask and self.sequence.padding_counts:
            raise ConfigError(
                f"trireme.parallelize: {type(self.model).__name__} counts positions by its attention_mask, from the first token behind padding "
                "on the left, and the call's position_ids count the padding too (as those do that trireme.shard makes): give "
                "position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0) in the whole batch, or pad on the right"
            )
        if mask is not None and module is not module.base_model and self._wants_router_logits(given):
            self._mask_shard, given["attention_mask"] = given["attention_mask"], mask
        if takes_use_cache(module):
            given["use_cache"] = False
        if self.gives_sequence:
            given[SEQUENCE_KEYWORD] = self.sequence
        return (), given

    def watch(self, model: torch.nn.Module) -> None:
        """Once it is wrapped: each call from now on compares its weights with the other ranks'."""
        if self.shared.size > 1:
            self.weights = WatchedWeights(model)

    def _tell_beyond_positions(self) -> None:
        """Once, on every rank, for a warning may be an error: a model that was never stretched computes numbers there too, of positions that it
        has never seen.
        """
        if self._told_beyond:
            return
        reach = reach_of_positions(self.model.config.get_text_config())
        if reach is None or self.sequence.longest_position < reach:
            return
        self._told_beyond = True
        warnings.warn(
            f"trireme.parallelize: got a sequence that reaches position {self.sequence.longest_position}, and {type(self.model).__name__} was made for "
            f"{reach} (max_position_embeddings, stretched by its rope_parameters). Before the model is made, set rope_parameters in its config, YaRN say, or "
            "max_position_embeddings together with a larger rope_theta",
            stacklevel=2,
        )

    def longest_position(self) -> int:
        """Of the whole batch in the call that runs."""
        if self.sequence is None:
            raise ConfigError("trireme.parallelize: rotary positions were asked for outside a call of the model: it is refused")
        return self.sequence.longest_position

    def _wants_router_logits(self, given: dict[str, Any]) -> bool:
        wanted = given.get("output_router_logits")
        return wants_router_logits(self.model) if wanted is None else wanted

    @torch._disable_dynamo
    def _before_language_model(self, _language_model, arguments, keywords):
        if not self._images:
            return None
        if keywords.get("position_ids") is not None:  # the model's own, which an image makes shorter
            self.sequence = dataclasses.replace(self.sequence, longest_position=int(keywords["position_ids"].max()))
        return arguments, cut_for_language_model(keywords, self.sequence)

    @torch._disable_dynamo
    def _before_body(self, _body, arguments, keywords):
        if self._mask_shard is None:
            return None
        return arguments, {**keywords, "attention_mask": self._mask_shard}

    @torch._disable_dynamo
    def _after_body(self, _body, _arguments, output):
        head = self.model.get_output_embeddings()
        for part in head.modules() if head is not None else ():
            if isinstance(part, FSDPModule):  # TRL's head reads the weight without a call; of a shard's gradient no other rank would hear
                part.unshard()
        logits = output.get("router_logits") if isinstance(output, dict) else None
        if logits is None or self.sequence is None:
            return None
        output["router_logits"] = tuple(self._of_all_tokens(layer) for layer in logits)
        return output

    def _of_all_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        """[B * s, experts] of this rank -> [B * S, experts]."""
        sequence = self.sequence
        part = logits.reshape(-1, sequence.lengths[sequence.shared.rank], logits.shape[-1])
        whole = gather_with_gradient(part, sequence.shared, sequence.lengths, self.averaged_over)
        return whole.flatten(0, 1) if logits.dim() == 2 else whole

    @torch._disable_dynamo
    def _after(self, _module, _arguments, output):
        sequence, self.sequence, self._images = self.sequence, None, False
        if self.whole is None or self.probing or sequence is None or output is None:
            return None
        return self.whole.join(output, sequence)
