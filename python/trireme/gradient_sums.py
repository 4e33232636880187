"""Gradients of a plain loop, summed over the ranks that share samples.

The sum over ranks of a weight's gradients is the gradient of one process (loss.py). Small gradients travel together: a
model has hundreds of norms, biases or LoRA's matrices, and each exchange costs its start.
"""

from __future__ import annotations

import collections
import math
import warnings
from typing import Iterable, Iterator, Optional

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .errors import ConfigError
from .sequence_group import Group, SequenceGroup, sequence_group

EXCHANGED_BYTES = 16 << 20
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
    once. Of FSDP's shards (over ranks outside the group) each is summed with its like. Gradients
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
    summed = []
    for parameter, is_used in zip(wanted, used.tolist()):
        if not is_used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        summed.append(_local(parameter.grad))
    for together in _exchanges(summed):
        _sum(together, shared)


def _exchanges(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Those of one exchange each: of one type, and EXCHANGED_BYTES at most where it is not one alone."""
    waiting: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    waiting_bytes: collections.Counter = collections.Counter()
    for gradient in gradients:
        kind, size = (gradient.device, gradient.dtype), gradient.numel() * gradient.itemsize
        if waiting_bytes[kind] + size > EXCHANGED_BYTES and kind in waiting:
            yield waiting.pop(kind)
            waiting_bytes[kind] = 0
        waiting.setdefault(kind, []).append(gradient)
        waiting_bytes[kind] += size
    yield from waiting.values()


def _sum(gradients: list[torch.Tensor], shared: SequenceGroup) -> None:
    first = gradients[0]
    if len(gradients) == 1 and first.itemsize > 2 and first.is_contiguous():
        dist.all_reduce(first, group=shared.process_group)
        return
    joined = torch.cat([gradient.flatten() for gradient in gradients]) if len(gradients) > 1 else first.flatten()
    joined = joined.float() if joined.itemsize == 2 else joined
    dist.all_reduce(joined, group=shared.process_group)
    for gradient, values in zip(gradients, joined.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(values.view_as(gradient))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _norm(gradient: Optional[torch.Tensor], device: torch.device) -> torch.Tensor:
    """An fp32 scalar; -1: there is no gradient; infinite also where it is NaN, which would equal no other rank's."""
    if gradient is None:
        return torch.tensor(-1.0, device=device)
    local = _local(gradient)
    norm = torch.linalg.vector_norm(local, dtype=torch.promote_types(local.dtype, torch.float32))
    return norm.to(device=device, dtype=torch.float32).nan_to_num(nan=math.inf, posinf=math.inf)
