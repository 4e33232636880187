"""The one loss rule: sum of cross entropy over all valid targets of all ranks, divided by their number.

Every rank backpropagates its own share of that sum. So the *sum* over ranks of a weight's gradients is the gradient of
one process; no factor of the number of ranks is anywhere.
"""

from __future__ import annotations

from typing import Union

import torch

from .cross_entropy import cross_entropy_sum
from .errors import ConfigError
from .sequence_group import Group, SequenceGroup, sequence_group


def count_targets(targets: torch.Tensor, group: Group = None, *, ignore_index: int = -100) -> torch.Tensor:
    """Valid targets of all ranks of the group, an int64 scalar. Collective."""
    return sequence_group(group).all_sum((targets != ignore_index).sum())


def loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    group: Group = None,
    *,
    num_targets: Union[int, torch.Tensor, None] = None,
    averaged_over: int = 1,
    ignore_index: int = -100,
) -> torch.Tensor:
    """Mean cross entropy over every valid target of every rank; the same value on all ranks. Collective.

    logits: [B, s, V] of this rank's tokens; targets: [B, s], already shifted (``shift_labels`` of trireme.shard).
    group: all ranks whose tokens count: the sequence ranks, or sequence x data ranks.
    num_targets: what to divide by, where the mean is over more than this call: with gradient accumulation, the sum of
        ``count_targets`` over the micro-batches (the values then add up to the step's loss). None: this call's own.
    averaged_over: the number of ranks over which DDP, FSDP or ZeRO will *average* gradients (usually the world size);
        1 where they are summed (``trireme.sum_gradients``). It changes the gradients, never the value.

    A rank without a valid target takes part with a zero loss. Without any, the loss is 0.
    """
    if targets.shape != logits.shape[:-1] or targets.dtype != torch.int64:
        raise ConfigError(
            f"loss: got logits {tuple(logits.shape)}, targets {tuple(targets.shape)} of {targets.dtype}, expected [B, s, V] and [B, s] of torch.int64"
        )
    shared = sequence_group(group)
    total = cross_entropy_sum(logits, targets, ignore_index)
    return mean_over_ranks(total, targets, shared, num_targets, averaged_over, ignore_index)


def mean_over_ranks(
    total: torch.Tensor,
    targets: torch.Tensor,
    shared: SequenceGroup,
    num_targets: Union[int, torch.Tensor, None],
    averaged_over: int,
    ignore_index: int,
) -> torch.Tensor:
    """The loss of all ranks from this rank's sum of cross entropy, a scalar; arguments as of ``loss``. Collective."""
    if averaged_over < 1:
        raise ConfigError(f"loss: got averaged_over={averaged_over}, expected 1 or more: over how many ranks gradients are averaged, 1 where they are summed")
    if num_targets is None:
        num_targets = count_targets(targets, shared, ignore_index=ignore_index)
    divisor = torch.as_tensor(num_targets, device=total.device)
    share = total / divisor.masked_fill(divisor == 0, 1)
    graded = share * averaged_over
    # The value of all ranks, the gradient of this rank's share.
    return shared.all_sum(share) + (graded - graded.detach())
