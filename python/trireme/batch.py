"""A batch of whole samples and its shards: which tokens a rank takes, and what it predicts."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch

from .errors import ConfigError
from .sequence_group import Group, sequence_group
from .valid_tokens import valid_tokens


def shard(batch: Mapping[str, Any], group: Group = None) -> dict[str, Any]:
    """This rank's tokens of a batch that every rank of the group has whole. Not collective.

    Tensors [B, S] or [B, S, ...] are cut along dim 1: the first S % P ranks take one token more; with a ring, as
    :class:`SequenceGroup` says. S is that of ``input_ids`` (or ``inputs_embeds``); other values pass as they are.

    - ``labels`` leave as ``shift_labels``: the target of each token, shifted in the whole sample before it was cut, so
      that no token at the end of a shard loses its own. -100 stands where there is none. Give them to trireme.loss.
    - ``position_ids`` are made (0, 1, ... S - 1) where the batch has none.
    - ``attention_mask`` goes where nothing is masked; a mask of [B, 1, S, S] is refused, and one that numbers
      documents. So is any beside position_ids that restart (by the call of the model, where something is masked):
      transformers lets such documents see each other.

    The ranks must hold the same batch. The shard of input_ids remembers which one it is of until it is copied, to another
    device say, and the call of the model refuses shards of different batches.
    """
    shared = sequence_group(group)
    named = next((name for name in ("input_ids", "inputs_embeds") if torch.is_tensor(batch.get(name))), None)
    if named is None:
        raise ConfigError(f"shard: got a batch of {sorted(batch)}, expected a tensor 'input_ids' or 'inputs_embeds'")
    samples, tokens = batch[named].shape[:2]
    whole = dict(batch)
    if torch.is_tensor(whole.get("labels")):
        if "shift_labels" in whole:
            raise ConfigError("shard: got both 'labels' and 'shift_labels', expected one of them")
        labels = whole.pop("labels")
        if labels.shape != (samples, tokens):
            raise ConfigError(f"shard: got labels {tuple(labels.shape)} beside {named} of [{samples}, {tokens}, ...]")
        whole["shift_labels"] = shifted_labels(labels)
    if whole.get("position_ids") is None:
        whole["position_ids"] = torch.arange(tokens, device=batch[named].device).expand(samples, tokens)
    mask = whole.get("attention_mask")
    if torch.is_tensor(mask) and mask.dim() == 2 and bool(valid_tokens(mask, "shard").all()):
        positions = batch.get("position_ids")
        if positions is not None and restarts(positions).any():
            raise ConfigError(
                "shard: position_ids restart beside an attention_mask; transformers lets such documents see each other, and shards do "
                "not. Leave the attention_mask out: position_ids alone tell packed documents"
            )
        del whole["attention_mask"]
    elif mask is not None and (not torch.is_tensor(mask) or mask.dim() != 2):
        raise ConfigError(
            f"shard: got an attention_mask of {tuple(mask.shape) if torch.is_tensor(mask) else type(mask)}, expected "
            "[B, S]; packed documents are told by position_ids that restart at 0"
        )
    spans = shared.spans(tokens)
    cut = {}
    for name, value in whole.items():
        along_tokens = torch.is_tensor(value) and value.dim() >= 2 and value.shape[1] == tokens
        if torch.is_tensor(value) and value.dim() >= 2 and not along_tokens:
            raise ConfigError(f"shard: got {name} of {tuple(value.shape)}, expected [B, {tokens}, ...]: its tokens along dim 1")
        cut[name] = take_spans(value, spans, dim=1) if along_tokens else value
    if named == "input_ids":
        setattr(cut[named], SHARD_OF, fingerprint(batch[named]))
    return cut


def restarts(position_ids: torch.Tensor) -> torch.Tensor:
    """[..., S] -> [..., S - 1]: where a token does not go on from the one before it, as at the border of packed documents."""
    return position_ids[..., 1:] != position_ids[..., :-1] + 1


def take_spans(tensor: torch.Tensor, spans: Sequence[tuple[int, int]], dim: int) -> torch.Tensor:
    """What lies in the spans [begin, end) of a dimension, one behind the other; nothing where there are none."""
    parts = [tensor.narrow(dim, begin, end - begin) for begin, end in spans]
    return torch.cat(parts, dim=dim) if parts else tensor.narrow(dim, 0, 0)


SHARD_OF = "trireme_shard_of"  # an attribute of a shard of input_ids


def fingerprint(values: torch.Tensor) -> torch.Tensor:
    """A checksum of whole numbers that depends on their order: int64 on their device, without waiting for it."""
    return (values.flatten() * torch.arange(1, values.numel() + 1, device=values.device)).sum()


def checksum(values: torch.Tensor) -> torch.Tensor:
    """The same of the bits of any values, which may be many: a piece at a time."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    pieces = values.detach().contiguous().view(bits).flatten().split(1 << 22)
    return sum((number * fingerprint(piece) for number, piece in enumerate(pieces, 1)), start=torch.zeros((), dtype=torch.int64, device=values.device))


def shifted_labels(labels: torch.Tensor) -> torch.Tensor:
    """What each token of labels [B, S] predicts; -100 at the last, which predicts nothing."""
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()  # as loss functions that view it want it


def gather(part: torch.Tensor, group: Group = None, *, lengths: Optional[list[int]] = None) -> torch.Tensor:
    """The whole [B, S, ...] of every rank's [B, s, ...], in the order of the sample. Collective.

    For values: predictions, logits, hidden states. A tensor that wants a gradient is refused, for whose gradient it
    would be depends on what each rank does with the whole; take the loss on the shards (trireme.loss).
    """
    shared = sequence_group(group)
    if part.requires_grad and torch.is_grad_enabled():
        raise ConfigError("gather: got a tensor that wants a gradient; take trireme.loss of the shards, or gather x.detach()")
    if lengths is None:
        length = torch.tensor([part.shape[1]], device=part.device)
        lengths = [int(each) for each in shared.all_gather(length)]
    tokens, longest = sum(lengths), max(lengths)
    padded = part.new_zeros((part.shape[0], longest, *part.shape[2:]))
    padded[:, : part.shape[1]] = part
    parts = [whole[:, :length] for whole, length in zip(shared.all_gather(padded), lengths)]
    if shared.ring == 1:
        return torch.cat(parts, dim=1)
    if lengths != shared.lengths(tokens):
        raise ConfigError(f"gather: got {lengths} tokens on the ranks of a ring, expected {shared.lengths(tokens)}")
    result = part.new_empty((part.shape[0], tokens, *part.shape[2:]))
    for rank, held in enumerate(parts):
        at = 0
        for begin, end in shared.spans(tokens, rank):
            result[:, begin:end] = held[:, at : at + end - begin]
            at += end - begin
    return result


@torch._disable_dynamo
def gather_with_gradient(part: torch.Tensor, group: Group, lengths: list[int], averaged_over: int = 1) -> torch.Tensor:
    """As gather, where every rank goes on alike from the whole: the gradient is this rank's slice, times averaged_over."""
    return _GatherTokens.apply(part, sequence_group(group), lengths, averaged_over)


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, shared, lengths, averaged_over):
        ctx.rest = shared, averaged_over, list(lengths)
        return gather(part.detach(), shared, lengths=lengths)

    @staticmethod
    def backward(ctx, d_whole):
        shared, averaged_over, lengths = ctx.rest
        begin = sum(lengths[: shared.rank])
        spans = shared.spans(sum(lengths)) if shared.ring > 1 else [(begin, begin + lengths[shared.rank])]
        return take_spans(d_whole, spans, dim=1) * averaged_over, None, None, None
