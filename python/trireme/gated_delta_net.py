"""Gated DeltaNet (Qwen3-Next, Qwen3.5) over ranks that share a sample: each computes some of its heads for all tokens.

    x_BsM  --projections-->  q|k|v|b|a of this rank's tokens  --all-to-all-->  those of this rank's heads, all tokens
           --convolution over time, delta rule-->  o_BSVD  --all-to-all-->  o_BsVD  --gated norm, projection-->  y_BsM

Heads of the recurrence (arXiv 2412.06464) do not see each other, and the convolution filters each column alone, so columns can be
traded for tokens as heads are in Ulysses (arXiv 2309.14509). Convolution and delta rule are Trireme's, which part packed documents by
masks (causal_convolution.py, delta_rule.py). Where the packages causal-conv1d and flash-linear-attention are installed, or something else has
taken the place of the model's plain functions, documents go through those one by one.
V value heads of width Dv; each V / K neighbours of them read one of K key heads of width Dk.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Iterator, Sequence

import torch

from .batch import take_spans
from .causal_convolution import causal_convolution
from .column_exchange import to_columns, to_tokens
from .delta_rule import gated_delta_rule
from .errors import ConfigError
from .model_calls import SEQUENCE_KEYWORD, ModelCalls
from .model_in_use import replace_forward
from .sequence_of_call import SequenceOfCall, of_a_call

# flash-linear-attention counts values of a call in 32 bits, and gave wrong numbers beyond (its issue 1080).
_MOST_OF_KERNEL = 2**31
_CLASSES = ("Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")


def delta_nets_in(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """(name, module, the Python module of its class) of each."""
    for name, module in model.named_modules():
        for base in type(module).__mro__:  # fully_shard makes a class of its own
            if base.__name__ in _CLASSES and base.__module__.startswith("transformers."):
                yield name, module, base.__module__


def share_delta_nets(calls: ModelCalls, undo: contextlib.ExitStack) -> None:
    """The forward of each Gated DeltaNet of the model, until ``undo`` closes."""
    for name, module, source in delta_nets_in(calls.model):
        if module.forward.__module__ != source:
            raise ConfigError(
                f"trireme.parallelize: {name} ({type(module).__name__}) has a forward of {module.forward.__module__}, whose place Trireme's would "
                f"take: it is refused; leave the forward of {source} as it is"
            )
        calls.gives_sequence = True
        replace_forward(module, _SharedDeltaNet(module, sys.modules[source], calls).forward, undo)


def _is_plain(function) -> bool:
    """Whether transformers falls back to its own code in torch: its wrapper (use_kernel_func_from_hub_with_fallback) has found no package."""
    plain = getattr(function, "__wrapped__", None)
    return plain is not None and inspect.getclosurevars(function).nonlocals.get("implementation") is plain


def _each_document(function, documents: Sequence[torch.Tensor], *rows_BS: torch.Tensor) -> torch.Tensor:
    """function of [1, t, ...] of each document, or of whole samples where each is one."""
    if not documents:
        return function(*rows_BS)
    samples = []
    for sample, borders in enumerate(documents):
        lengths = borders.diff().tolist()
        each = zip(*(part[sample : sample + 1].split(lengths, dim=1) for part in rows_BS))
        samples.append(torch.cat([function(*document) for document in each], dim=1))
    return torch.cat(samples)


class _SharedDeltaNet:
    def __init__(self, module: torch.nn.Module, functions, calls: ModelCalls):
        """functions: the Python module of the model's class."""
        self.module = module
        self.calls = calls
        self.convolve = functions.causal_conv1d_fn
        self.delta_rule = functions.torch_chunk_gated_delta_rule

    @torch._disable_dynamo
    def forward(self, hidden_states, cache_params=None, attention_mask=None, **keywords):
        """As the module's: [B, s, M] of this rank's tokens. Collective, both ways. Padding is parted by its borders, not by the mask."""
        module, sequence = self.module, of_a_call(keywords.get(SEQUENCE_KEYWORD))
        columns_BsC, z_BsVD = self._project(hidden_states)
        if self.calls.probing:
            o_BsC = self._of_each_token(columns_BsC)
        else:
            shares = [self._value_heads(rank, sequence.shared.size) for rank in range(sequence.shared.size)]
            columns_BSc = to_columns(columns_BsC, sequence, [self._columns(*share) for share in shares])
            o_BSc = self._mix(columns_BSc, *shares[sequence.shared.rank], sequence)
            o_BsC = to_tokens(o_BSc, sequence, [(last - first) * module.head_v_dim for first, last in shares])
        o_TD = module.norm(o_BsC.reshape(-1, module.head_v_dim), z_BsVD.reshape(-1, module.head_v_dim))
        return module.out_proj(o_TD.view(o_BsC.shape))

    def _project(self, x_BsM):
        """q|k|v|b|a [B, s, 2 K Dk + V Dv + 2 V], and the gate of the output."""
        module = self.module
        if hasattr(module, "in_proj_qkvz"):  # Qwen3-Next
            *qkv, z, b, a = module.fix_query_key_value_ordering(module.in_proj_qkvz(x_BsM), module.in_proj_ba(x_BsM))
            return torch.cat([*(part.flatten(2) for part in qkv), b, a], dim=-1), z
        parts = module.in_proj_qkv(x_BsM), module.in_proj_b(x_BsM), module.in_proj_a(x_BsM)
        return torch.cat(parts, dim=-1), module.in_proj_z(x_BsM)

    def _value_heads(self, rank: int, ranks: int) -> tuple[int, int]:
        """Whole groups of a key head where there are as many as ranks; none at some ranks beyond the value heads."""
        keys, values = self.module.num_k_heads, self.module.num_v_heads
        of_unit = values // keys if ranks <= keys else 1
        units = values // of_unit
        return rank * units // ranks * of_unit, (rank + 1) * units // ranks * of_unit

    def _key_heads(self, first: int, last: int) -> tuple[int, int]:
        """Those that value heads [first, last) read."""
        group = self.module.num_v_heads // self.module.num_k_heads
        return (first // group, -(-last // group)) if last > first else (0, 0)

    def _convolved(self, first: int, last: int) -> list[tuple[int, int]]:
        """Columns of q, k and v, which the convolution's weights [2 K Dk + V Dv, 1, width] have too."""
        module = self.module
        of_keys = tuple(module.head_k_dim * head for head in self._key_heads(first, last))
        of_values = tuple(module.head_v_dim * head for head in (first, last))
        offsets = (0, of_keys), (module.key_dim, of_keys), (2 * module.key_dim, of_values)
        return [(offset + begin, offset + end) for offset, (begin, end) in offsets]

    def _columns(self, first: int, last: int) -> list[tuple[int, int]]:
        b = 2 * self.module.key_dim + self.module.value_dim
        a = b + self.module.num_v_heads
        return [*self._convolved(first, last), (b + first, b + last), (a + first, a + last)]

    def _mix(self, columns_BSc, first: int, last: int, sequence: SequenceOfCall):
        """o [B, S, (last - first) Dv] of value heads [first, last)."""
        module = self.module
        if first == last:  # the parameters have a gradient here too, of zeros, as on other ranks
            nothing = module.A_log.sum() + module.dt_bias.sum() + module.conv1d.weight.sum()
            return columns_BSc + (0 * nothing).to(columns_BSc.dtype)
        spans = self._convolved(first, last)
        weight = take_spans(module.conv1d.weight, spans, dim=0).squeeze(1)
        qkv_BSc, b_BSv, a_BSv = columns_BSc.split([sum(end - begin for begin, end in spans), last - first, last - first], dim=-1)
        # fp32, as in the model: exp of a parameter in fp16 may be infinite.
        decay_BSv = -module.A_log[first:last].float().exp() * torch.nn.functional.softplus(a_BSv.float() + module.dt_bias[first:last])
        qkv_BSc = self._convolve(qkv_BSc, weight, sequence.documents)
        first_key, last_key = self._key_heads(first, last)
        of_keys = (last_key - first_key) * module.head_k_dim
        q, k, v = qkv_BSc.split([of_keys, of_keys, qkv_BSc.shape[-1] - 2 * of_keys], dim=-1)
        q, k = (part.unflatten(-1, (-1, module.head_k_dim)) for part in (q, k))
        group = module.num_v_heads // module.num_k_heads
        key_of_value = [head // group - first_key for head in range(first, last)]
        inputs = q, k, v.unflatten(-1, (-1, module.head_v_dim)), decay_BSv, b_BSv.sigmoid()
        return self._apply_rule(inputs, key_of_value, sequence.documents).flatten(2)

    def _convolve(self, qkv_BSc, weight, documents):
        if _is_plain(self.convolve) and self.module.activation in ("silu", "swish"):
            return causal_convolution(qkv_BSc, weight, documents)

        def convolve(qkv_Btc):
            # causal-conv1d takes no rows that lie within wider ones.
            return self.convolve(qkv_Btc.contiguous().transpose(1, 2), weight, None, activation=self.module.activation).transpose(1, 2)

        return _each_document(convolve, documents, qkv_BSc)

    def _apply_rule(self, inputs, key_of_value: list[int], documents):
        """q, k [B, S, k, Dk], v [B, S, v, Dv], decay, beta [B, S, v] -> o [B, S, v, Dv]."""
        if _is_plain(self.delta_rule) or inputs[2].numel() // inputs[2].shape[-1] * max(inputs[0].shape[-1], inputs[2].shape[-1]) >= _MOST_OF_KERNEL:
            return gated_delta_rule(*inputs, key_of_value, documents)
        heads, values = inputs[0].shape[2], len(key_of_value)
        # It knows equal groups alone: not a key head of which this rank has some of the values.
        even = values % heads == 0 and key_of_value == [value // (values // heads) for value in range(values)]

        def rule(q, k, v, decay, beta):
            if not even:
                q, k = q[:, :, key_of_value], k[:, :, key_of_value]
            return self.delta_rule(q, k, v, g=decay, beta=beta, use_qk_l2norm_in_kernel=True)[0]

        return _each_document(rule, documents, *inputs)

    def _of_each_token(self, columns_BsC):
        """Mixes none: token_mixing.py looks for others."""
        module = self.module
        q, k, v, b, a = columns_BsC.split([module.key_dim, module.key_dim, module.value_dim, module.num_v_heads, module.num_v_heads], dim=-1)
        return v + (q * k).sum(-1, keepdim=True) + (b * a).sum(-1, keepdim=True)
