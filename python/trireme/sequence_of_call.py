"""The whole sample behind one forward pass of a model: the tokens of each rank, and its documents.

    position_ids, attention_mask of each rank's shard  --gathered once a pass-->  documents of each sample
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Mapping, Optional

import torch

from .batch import SHARD_OF, checksum, fingerprint, gather, restarts
from .errors import ConfigError
from .same_weights import WatchedWeights
from .sequence_group import SequenceGroup
from .valid_tokens import valid_tokens

IMAGES = ("pixel_values", "pixel_values_videos")  # what a model that reads images too is called with
_COMPARED = ("input_ids", "labels", "shift_labels", "position_ids", "attention_mask")
_COMPARED_BESIDE_IMAGES = ("image_grid_thw", "video_grid_thw", "image_sizes", "mm_token_type_ids")

@dataclasses.dataclass(frozen=True, eq=False)
class SequenceOfCall:
    shared: SequenceGroup
    lengths: list[int]  # tokens of each rank
    padding: list[torch.Tensor]  # cu_seqlens that part a sample's tokens from its padding; none where it has none
    documents: list[torch.Tensor]  # and that part its documents; none where each sample is one
    restarts: bool  # some sample holds several documents
    longest_position: int  # of the batch
    padding_counts: bool  # positions of some sample begin with its padding on the left

    @functools.cached_property
    def sample_order(self) -> Optional[torch.Tensor]:
        """The number in its sample of each token, as ranks hold them one behind the other; None where that is 0, 1, 2, ..."""
        if self.shared.ring == 1:
            return None
        spans = (span for rank in range(self.shared.size) for span in self.shared.spans(sum(self.lengths), rank))
        return torch.cat([torch.arange(begin, end, device="cpu") for begin, end in spans])

    def borders(self, causal: bool) -> list[torch.Tensor]:
        """cu_seqlens for ulysses_attention. Transformers lets encoders see across positions that restart."""
        if causal:
            return self.documents
        if self.restarts:
            raise ConfigError(
                "trireme.parallelize: position_ids restart at 0 in a model with full attention, which transformers lets "
                "see across documents: give one document a sample, with an attention_mask for its padding"
            )
        return self.padding


def of_a_call(sequence: Optional[SequenceOfCall]) -> SequenceOfCall:
    """What a layer was given; it has none where it runs outside a call of the model."""
    if sequence is None:
        raise ConfigError(
            "trireme.parallelize: a part of the model was called by itself, or its forward without its hooks (model.forward, AdaLoRA); "
            "call the model that was given"
        )
    return sequence


def sequence_of_shards(
    shared: SequenceGroup,
    embeds_or_ids: torch.Tensor,
    position_ids: Optional[torch.Tensor],
    attention_mask: Optional[torch.Tensor],
    weights: WatchedWeights,
) -> tuple[SequenceOfCall, torch.Tensor, Optional[torch.Tensor]]:
    """Collective. embeds_or_ids: [B, s, ...] of this rank.

    Returns the sequence, this rank's position_ids [B, s] and the attention_mask [B, S] of all ranks.
    """
    batch, tokens = embeds_or_ids.shape[:2]
    device = embeds_or_ids.device
    # Collective first, so that what one rank is refused for, all are.
    shard_of = getattr(embeds_or_ids, SHARD_OF, None)
    call = torch.tensor([shard_of is None, tokens, batch, position_ids is not None, attention_mask is not None], device=device)
    of_batch = call.new_zeros(1) if shard_of is None else shard_of.to(device).reshape(1)
    ranks = [part.tolist() for part in shared.all_gather(torch.cat([weights.checksum(device).reshape(1), of_batch, call]))]
    drift = [theirs[0] for theirs in ranks]
    batches, unknown = {theirs[1] for theirs in ranks}, any(theirs[2] for theirs in ranks)
    ranks = [theirs[3:] for theirs in ranks]
    if len(batches) > 1 and not unknown:
        raise ConfigError(
            "trireme.parallelize: the ranks of a group were called with shards of different batches: ranks that share a sample load the "
            "same samples; give the data loader's sampler the number and index of the groups, not of the ranks"
        )
    if any(theirs[1:] != ranks[0][1:] for theirs in ranks):
        raise ConfigError(
            "trireme.parallelize: the ranks' calls differ; [tokens, batch, has position_ids, has attention_mask] of each "
            f"rank: {ranks}. Every rank calls the model, and in the same order"
        )
    weights.refuse_drift(drift)
    lengths = [theirs[0] for theirs in ranks]
    whole = sum(lengths)
    _check_lengths(lengths)
    if shared.ring > 1 and lengths != shared.lengths(whole):
        raise ConfigError(f"trireme.parallelize: got {lengths} tokens on the ranks of a ring, expected {shared.lengths(whole)}")
    expected = f"on a shard of [{batch}, {tokens}], expected the same: the shard's tokens alone"
    _check_shapes((batch, tokens), expected, position_ids=position_ids, attention_mask=attention_mask)
    if position_ids is None:
        spans = shared.spans(whole) if shared.ring > 1 else [(sum(lengths[: shared.rank]), sum(lengths[: shared.rank + 1]))]
        position_ids = torch.cat([torch.arange(*span, device=device) for span in spans]).expand(batch, tokens)
        positions = None
    else:
        positions = gather(position_ids.expand(batch, tokens), shared, lengths=lengths).cpu()
    valid = None
    if attention_mask is not None:
        valid = gather(attention_mask.expand(batch, tokens), shared, lengths=lengths)
    return SequenceOfCall(shared, lengths, *_borders(batch, whole, positions, valid)), position_ids, valid


def sequence_of_whole(shared: SequenceGroup, given: Mapping[str, Any], weights: WatchedWeights) -> tuple[SequenceOfCall, Optional[torch.Tensor]]:
    """Collective. given: input_ids or inputs_embeds [B, S, ...], position_ids, attention_mask, labels and num_items_in_batch of the whole batch.

    Returns the sequence and the attention_mask [B, S]. Ranks that were given other batches are refused.
    """
    named = "inputs_embeds" if given.get("input_ids") is None else "input_ids"
    batch, tokens = given[named].shape[:2]
    device = given[named].device
    shape = [torch.tensor(size, device=device) for size in (batch, tokens)]
    prints = [
        fingerprint(given[name]) if _counts(given.get(name)) else torch.zeros_like(shape[0]) for name in (*_COMPARED, *_COMPARED_BESIDE_IMAGES)
    ]
    prints += [checksum(given[name]) if given.get(name) is not None else torch.zeros_like(shape[0]) for name in IMAGES]
    divisor = given.get("num_items_in_batch")
    prints.append(checksum(torch.as_tensor(-1 if divisor is None else divisor, dtype=torch.float64, device=device)))
    ranks = torch.stack(shared.all_gather(torch.stack([weights.checksum(device), *shape, *prints]))).tolist()
    drift = [theirs.pop(0) for theirs in ranks]
    if any(theirs != ranks[0] for theirs in ranks):
        raise ConfigError(
            "trireme.parallelize: the ranks of a sequence group were called with different batches; [samples, tokens, checksums of "
            f"{', '.join((*_COMPARED, *_COMPARED_BESIDE_IMAGES, *IMAGES))}, num_items_in_batch] of each rank: {ranks}. With whole_batches the ranks that share a "
            "sample load the same samples: give the data loader's sampler the number and index of the data ranks. A shuffle, a collator or a worker that "
            "draws at random in each process wants a seed (of a Trainer also accelerator_config={'dispatch_batches': True}), and a model that is called on "
            "one rank alone (a callback on process 0) is to be called on all"
        )
    weights.refuse_drift(drift)
    lengths = shared.lengths(tokens)
    _check_lengths(lengths)
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    expected = f"beside {named} of [{batch}, {tokens}], expected [B, S]"
    if 3 in (getattr(tensor, "ndim", 0) for tensor in (positions, mask)):
        expected += "; leave them out: a model that reads images makes its own"
    _check_shapes((batch, tokens), expected, position_ids=positions, attention_mask=mask)
    positions = None if positions is None else positions.expand(batch, tokens).cpu()
    mask = None if mask is None else mask.expand(batch, tokens)
    return SequenceOfCall(shared, lengths, *_borders(batch, tokens, positions, mask)), mask


def _check_shapes(shape: tuple[int, int], expected: str, **given: object) -> None:
    """given: tensors by name, [B, S] or [1, S]."""
    for name, tensor in given.items():
        if tensor is None:
            continue
        if not torch.is_tensor(tensor):
            raise ConfigError(f"trireme.parallelize: got {name} as a {type(tensor).__name__}, expected a tensor of [B, S]")
        if tuple(tensor.shape) not in (shape, (1, shape[1])):
            raise ConfigError(f"trireme.parallelize: got {name} of {tuple(tensor.shape)} {expected}")


def _counts(tensor: Optional[torch.Tensor]) -> bool:
    return torch.is_tensor(tensor) and not tensor.is_floating_point()


def _check_lengths(lengths: list[int]) -> None:
    if min(lengths) == 0:
        whole = sum(lengths)
        raise ConfigError(
            f"trireme.parallelize: got {lengths} tokens on the ranks; a rank without a token is refused, for models are not "
            f"made for that: let at most {whole} ranks share a sample of {whole} tokens, or pad it"
        )


def _borders(batch, tokens, positions, mask):
    valid = None if mask is None else valid_tokens(mask, "trireme.parallelize")
    edge = torch.zeros(batch, max(tokens - 1, 0), dtype=torch.bool, device="cpu")
    padded = edge if valid is None else valid[:, 1:] != valid[:, :-1]
    restart = edge if positions is None else restarts(positions)
    if valid is not None:
        restart = restart & valid[:, 1:] & valid[:, :-1]
        if (padded.sum(1) > 2).any() or ((padded.sum(1) == 2) & valid[:, 0]).any():
            raise ConfigError("trireme.parallelize: got an attention_mask with a hole; expected padding at the ends of a sample only")
        if restart.any():
            raise ConfigError(
                "trireme.parallelize: position_ids restart beside an attention_mask; transformers would let such documents "
                "see each other. Leave the attention_mask out: position_ids alone tell packed documents"
            )
    borders = [
        [] if not edges.any() else [_cu_seqlens(row, tokens) for row in edges] for edges in (padded, padded | restart)
    ]
    first = torch.zeros(batch, 1, dtype=torch.long, device="cpu") if valid is None else valid.int().argmax(1, keepdim=True)
    begins_at = first if positions is None else positions.gather(1, first)
    padding_counts = bool((begins_at[first > 0] != 0).any())
    return *borders, bool(restart.any()), tokens - 1 if positions is None else int(positions.max()), padding_counts


def _cu_seqlens(edges: torch.Tensor, tokens: int) -> torch.Tensor:
    inner = edges.nonzero().flatten() + 1
    return torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), tokens)])
