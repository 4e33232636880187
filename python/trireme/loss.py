"""The one loss rule: sum of cross entropy over all valid targets of all ranks, divided by their number.

Every rank backpropagates its own share of that sum. So the *sum* over ranks of a weight's gradients is the gradient of
one process; no factor of the number of ranks is anywhere.
"""

from __future__ import annotations

import math
import warnings
from typing import Iterable, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

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
    if targets.shape != logits.shape[:-1]:
        raise ConfigError(f"loss: got logits {tuple(logits.shape)}, targets {tuple(targets.shape)}, expected [B, s, V] and [B, s]")
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
    if num_targets is None:
        num_targets = count_targets(targets, shared, ignore_index=ignore_index)
    share = total / torch.as_tensor(num_targets, device=total.device).clamp(min=1)
    graded = share * averaged_over
    # The value of all ranks, the gradient of this rank's share.
    return shared.all_sum(share) + (graded - graded.detach())


_AVERAGED = "_trireme_averaged_over"  # of a parameter: the ranks


def tell_average(parameters: Iterable[torch.nn.Parameter], shared: SequenceGroup, averaged_over: int) -> None:
    """For ``sum_gradients``, which refuses over these ranks what is multiplied by their number for a wrapper that averages."""
    ranks = dist.get_process_group_ranks(shared.process_group) if averaged_over > 1 else None
    for parameter in parameters:
        if ranks is not None:
            setattr(parameter, _AVERAGED, ranks)
        else:
            vars(parameter).pop(_AVERAGED, None)


def sum_gradients(parameters: Iterable[torch.nn.Parameter], group: Group = None) -> None:
    """Sums every parameter's gradient over the ranks, in place: what a plain loop calls before the optimizer's step.

    One that got no gradient on this rank (an expert without tokens) counts as zero; one that got none on any rank keeps none, as
    in one process, so that no optimizer decays it or moves it by its momentum. Gradients of 16 bits are summed in fp32 and rounded
    once, one parameter after another. Of FSDP's shards (over ranks outside the group) each is summed with its like. Gradients
    whose norms are the same on all ranks were probably summed or averaged before: a warning says so. Collective.
    """
    shared = sequence_group(group)
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    if shared.size == 1 or not wanted:
        return
    ranks = dist.get_process_group_ranks(shared.process_group)
    if any(getattr(parameter, _AVERAGED, None) == ranks for parameter in wanted):
        raise ConfigError(
            "sum_gradients: the model's last block had an averaged_over above 1: its gradients are for DDP, FSDP or DeepSpeed to average over "
            "these ranks, and a sum would be as many times too large: leave sum_gradients out, or averaged_over"
        )
    rank_norms = torch.stack([_norm(parameter.grad, wanted[0].device) for parameter in wanted])
    norms = torch.stack(shared.all_gather(rank_norms))  # of each rank and parameter
    used = (norms >= 0).any(dim=0)
    tells = (norms > 0) & norms.isfinite()
    if tells.any() and (norms == norms[0]).all():
        warnings.warn(
            "sum_gradients: got gradients whose norms are the same on all ranks of the group. Were they summed before (a second call, or a call after "
            "each micro-batch), or averaged by DDP, FSDP or DeepSpeed? Sum them once before optimizer.step(), or leave it to the wrapper and give "
            "averaged_over. A head or a penalty that every rank computes whole has such gradients too, and may be summed if its part was divided by "
            "the group's size",
            stacklevel=2,
        )
    for parameter, is_used in zip(wanted, used.tolist()):
        if not is_used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = _local(parameter.grad)
        summed = gradient.float() if gradient.itemsize == 2 else gradient
        dist.all_reduce(summed, group=shared.process_group)
        if summed is not gradient:
            gradient.copy_(summed)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _norm(gradient: Optional[torch.Tensor], device: torch.device) -> torch.Tensor:
    """An fp32 scalar; -1: there is no gradient; infinite also where it is NaN, which would equal no other rank's."""
    if gradient is None:
        return torch.tensor(-1.0, device=device)
    local = _local(gradient)
    norm = torch.linalg.vector_norm(local, dtype=torch.promote_types(local.dtype, torch.float32))
    return norm.to(device=device, dtype=torch.float32).nan_to_num(nan=math.inf, posinf=math.inf)
