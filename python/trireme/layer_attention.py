"""What transformers calls in place of its own attention: the mask that layers get, and the attention of one layer."""

from __future__ import annotations

import contextlib
import itertools

import torch

from .attention import ulysses_attention
from .errors import ConfigError
from .model_calls import SEQUENCE_KEYWORD, ModelCalls
from .sequence_of_call import of_a_call
from .transformers_mask import SeenKeys, read_mask_function

NAME_OF_ATTENTION = "trireme_"  # in the AttentionInterface; a number follows

# What layers hand to attention and Trireme may ignore: it is in the mask, or about other things than attention.
_IGNORED = {
    "attention_mask", "cache", "cache_position", "deterministic", "is_causal", "labels", "logits_to_keep", "num_items_in_batch", "output_attentions",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "shift_labels", "sliding_window", "use_cache", SEQUENCE_KEYWORD,
}  # fmt: skip
_REFUSED = {
    "position_bias": "a bias of positions on the scores",
    "cu_seq_lens_q": "cu_seq_lens of flash attention; give position_ids that restart at 0 in their place",
}


class LayerAttention:
    """The functions that one `with` block registers, under a name that no other open block has."""

    def __init__(self, calls: ModelCalls):
        self.calls = calls
        self.layers_seen = 0

    def register(self, undo: contextlib.ExitStack) -> str:
        """Until ``undo`` closes. Returns the name, the first that is free: torch.compile compiles again for one that it has not seen."""
        from transformers import AttentionInterface, AttentionMaskInterface

        names = (f"{NAME_OF_ATTENTION}{number}" for number in itertools.count())
        name = next(name for name in names if name not in AttentionInterface._global_mapping)
        for interface, function in ((AttentionInterface, self.attend), (AttentionMaskInterface, self.make_mask)):
            interface.register(name, function)
            undo.callback(interface._global_mapping.pop, name)
        return name

    @torch._disable_dynamo
    def make_mask(self, q_length=None, kv_length=None, *, mask_function, **_arguments):
        """As a function of AttentionMaskInterface: what layers get as their attention_mask."""
        sequence = of_a_call(self.calls.sequence)
        if q_length != kv_length:
            raise ConfigError(f"trireme.parallelize: {q_length} queries see {kv_length} keys (a cache, a prefix): it is refused")
        causal, window = read_mask_function(mask_function)
        return SeenKeys(causal, window, sequence, type(self.calls.model).__name__)

    @torch._disable_dynamo
    def attend(self, module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, softcap=None, s_aux=None, **keywords):
        """As a function of AttentionInterface: q [B, H, s, D], k, v [B, K, s, D], sinks [H] -> o [B, s, H, D], no weights."""
        name, mask = type(module).__name__, attention_mask
        self._check_call(name, module, mask, dropout, keywords)
        self.layers_seen += 1
        if torch.is_autocast_enabled(query.device.type):  # as scaled_dot_product_attention: rotated queries and keys come in fp32
            query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
        width, of_values = query.shape[-1], value.shape[-1]
        # Latent attention (DeepSeek) has values of another width than keys; columns of zeros change neither scores nor sums.
        q, k, v = (_padded(x.transpose(1, 2), max(width, of_values)) for x in (query, key, value))
        if self.calls.probing:  # of each token alone: token_mixing.py looks for others
            repeat = q.shape[2] // k.shape[2]
            return (q + (k + v).repeat_interleave(repeat, 2))[..., :of_values], None
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
            scale=width**-0.5 if scaling is None else scaling,
            softcap=softcap,
            sinks=s_aux,
        )
        return o[..., :of_values], None

    def _check_call(self, name, module, mask, dropout, keywords) -> None:
        if not isinstance(mask, SeenKeys):
            raise ConfigError(
                f"trireme.parallelize: {name} attends without a mask made by transformers' masking_utils, got "
                f"{type(mask).__name__}: it is refused"
            )
        if dropout:
            raise ConfigError(
                f"trireme.parallelize: {name} drops out attention weights ({dropout}): build the model with that "
                "dropout at 0 (attention_dropout, attn_pdrop or attention_probs_dropout_prob of its config)"
            )
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


def _padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor
