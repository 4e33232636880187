"""Attention of a sequence that is shared by ranks, as a differentiable function of each rank's shard.

    q_BsHD, k_BsKD, v_BsKD  --all-to-all-->  this rank's heads of the whole sequence  --attention, all-to-all-->  o_BsHD

B batch, s tokens of this rank, H query and K key/value heads, D head width. The method is Ulysses' (arXiv 2309.14509),
with a ring between the exchanges where there are more ranks than heads (trireme/attention, in C++).
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Mapping, Optional, Sequence, Union

import torch

from . import _operators
from .attention_arguments import AttentionArguments
from .errors import ConfigError
from .sequence_group import Group, SequenceGroup, sequence_group

Borders = Union[torch.Tensor, Sequence[int]]


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Group = None,
    *,
    lengths: Optional[Sequence[int]] = None,
    cu_seqlens: Union[Borders, Sequence[torch.Tensor], None] = None,
    window: Optional[int] = None,
    causal: bool = True,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    sinks: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Attention of this rank's queries over every key of the sample. Collective over ``group``, both ways.

    q: [B, s, H, D], this rank's tokens in their order; k, v: [B, s, K, D], K divides H. fp32, bf16, fp16 or fp64.
        s may differ between ranks and be zero; B, H, K, D and the dtype are the same on all.
    group: a ProcessGroup, or a :class:`SequenceGroup` for a ring. Ulysses ranks are at most H.
    lengths: tokens of every rank, in rank order. Without them the ranks ask each other in every call, and compare what else they
        were given.
    cu_seqlens: borders of packed documents in the whole sample: 0, ..., S; one for all samples of the batch, or a list
        of B tensors. Attention does not cross them. Without it a sample is one document.
    window: a query sees itself and the ``window - 1`` tokens before it (and, if not causal, after it).
    scale: of the scores; 1 / sqrt(D) if None.
    softcap: scores are ``softcap * tanh(scale * q.k / softcap)`` (Gemma 2); as they are if None.
    sinks: [H], the same on all ranks, of q's dtype or fp32 (gpt-oss): every softmax of head h has one more key, of score
        ``sinks[h]`` and with a zero value.

    Returns o [B, s, H, D]. Gradients of q, k and v are those of the shards. The gradient of sinks is this rank's share, whose
    sum over the ranks is the whole, as with every weight. A second derivative is not there.
    Raises ConfigError (a ValueError) for what it refuses; a peer that does not come is a DistBackendError.
    """
    shared = sequence_group(group)
    _check(q, k, v, shared, window, scale, softcap, sinks)
    options = dict(
        cu_seqlens=_documents(cu_seqlens, q.shape[0]),
        window=window or 0,
        causal=causal,
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        softcap=float(softcap or 0),
    )
    if lengths is None:
        lengths = _agreed_lengths(q, k, sinks, shared, options)
    elif len(lengths) != shared.size or lengths[shared.rank] != q.shape[1]:
        raise ConfigError(
            f"lengths: got {list(lengths)} at rank {shared.rank} of {shared.size}, which holds {q.shape[1]} tokens; "
            "expected the tokens of each rank, in rank order"
        )
    tokens = sum(lengths)
    if shared.ring > 1 and list(lengths) != shared.lengths(tokens):
        raise ConfigError(
            f"a ring takes a sample as trireme.shard cuts it: got {list(lengths)} tokens on the ranks, expected "
            f"{shared.lengths(tokens)}"
        )
    arguments = AttentionArguments(group=shared.name, ring=shared.ring, lengths=list(lengths), **options)
    try:
        return _operators.ulysses_forward(q, k, v, sinks, *arguments)[0]
    except ValueError as error:  # of C++, where another rank's failure is none
        raise ConfigError(str(error)) from None


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    shared: SequenceGroup,
    window: Optional[int],
    scale: Optional[float],
    softcap: Optional[float],
    sinks: Optional[torch.Tensor],
) -> None:
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ConfigError(f"ulysses_attention: {shapes}; expected q [B, s, H, D] and k, v [B, s, K, D]")
    if 0 in (*q.shape[2:], k.shape[2]) or q.shape[2] % k.shape[2]:
        raise ConfigError(f"ulysses_attention: {shapes}; expected heads, of a width of 1 or more, and key/value heads that divide the query heads")
    if len({q.dtype, k.dtype, v.dtype}) != 1 or len({q.device, k.device, v.device}) != 1 or not q.is_floating_point():
        raise ConfigError(
            f"ulysses_attention: got {q.dtype}, {k.dtype}, {v.dtype} on {q.device}, {k.device}, {v.device}; expected one "
            "floating dtype and one device"
        )
    if shared.ulysses > q.shape[2]:
        raise ConfigError(
            f"ulysses_attention: got {shared.ulysses} Ulysses ranks for {q.shape[2]} query heads, expected at most one "
            f"rank a head; make trireme.SequenceGroup(group, ring=R) with R of {-(-shared.ulysses // q.shape[2])} or more"
        )
    if window is not None and window < 1:
        raise ConfigError(f"window: got {window}, expected 1 or more tokens, or None")
    if scale is not None and not abs(scale) < math.inf:
        raise ConfigError(f"scale: got {scale}, expected a finite number, or None for 1 / sqrt(D)")
    if softcap is not None and not 0 < softcap <= 10_000:
        raise ConfigError(f"softcap: got {softcap}, expected more than 0, at most 10000, or None")
    if sinks is not None and (
        sinks.shape != q.shape[2:3] or sinks.dtype not in (q.dtype, torch.float32) or sinks.device != q.device
    ):
        raise ConfigError(
            f"sinks: got {tuple(sinks.shape)}, {sinks.dtype} on {sinks.device}; expected [{q.shape[2]}], one of each query "
            f"head, {q.dtype} or torch.float32 on {q.device}"
        )


def _agreed_lengths(
    q: torch.Tensor, k: torch.Tensor, sinks: Optional[torch.Tensor], shared: SequenceGroup, options: Mapping[str, Any]
) -> list[int]:
    if shared.size == 1:
        return [q.shape[1]]
    mine = {"batch": q.shape[0], "query heads": q.shape[2], "key/value heads": k.shape[2], "width": q.shape[3], "dtype": q.dtype, **options}
    mine.update(sinks=None if sinks is None else sinks.dtype, cu_seqlens=[borders.tolist() for borders in options["cu_seqlens"]])
    told = [q.shape[1], *(zlib.crc32(repr(value).encode()) for value in mine.values())]
    all_ranks = [part.tolist() for part in shared.all_gather(torch.tensor(told, device=q.device))]
    for rank, theirs in enumerate(all_ranks):
        other = [f"{name} {value}" for (name, value), own, their in zip(mine.items(), told[1:], theirs[1:]) if own != their]
        if other:
            raise ConfigError(f"ulysses_attention: rank {shared.rank} has {', '.join(other)}, rank {rank} another; expected the same on all ranks")
    return [theirs[0] for theirs in all_ranks]


def _documents(cu_seqlens, batch: int) -> list[torch.Tensor]:
    if cu_seqlens is None:
        return []
    each = list(cu_seqlens) if not torch.is_tensor(cu_seqlens) and len(cu_seqlens) and torch.is_tensor(cu_seqlens[0]) else [cu_seqlens]
    each = [borders if torch.is_tensor(borders) else torch.tensor(borders, dtype=torch.int64) for borders in each]
    if len(each) not in (1, batch) or any(borders.dim() != 1 or borders.is_floating_point() for borders in each):
        raise ConfigError(
            f"cu_seqlens: got {len(each)} tensors of {[tuple(b.shape) for b in each]} for a batch of {batch}; expected one "
            "row of token numbers, or one for each sample"
        )
    return each
