"""``trireme.loss`` from hidden states and a head's weight, where no logits exist whole (sum_of_cross_entropy.py).

    hidden_BsH, weight_VH, targets_Bs  -->  this rank's sum of cross entropy  -->  the mean over all ranks' targets
"""

from __future__ import annotations

from typing import Optional, Union

import torch

from .errors import ConfigError
from .loss import mean_over_ranks
from .sequence_group import Group, sequence_group
from .sum_of_cross_entropy import sum_of_cross_entropy


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    group: Group = None,
    *,
    bias: Optional[torch.Tensor] = None,
    softcap: Optional[float] = None,
    scale: float = 1.0,
    num_targets: Union[int, torch.Tensor, None] = None,
    averaged_over: int = 1,
    ignore_index: int = -100,
    tokens_per_tile: Optional[int] = None,
) -> torch.Tensor:
    """``trireme.loss`` of the logits ``scale * (hidden @ weight.T + bias)``, which are never whole in memory. Collective.

    hidden: [B, s, H], what the model's head gets; weight: [V, H], bias: [V], the head's. One floating dtype, in which the
        products are taken (autocast's, within it); the softmax is in fp32, or fp64 for fp64.
    softcap: the logits become ``softcap * tanh(logits / softcap)`` (Gemma 2).
    tokens_per_tile: logits of so many tokens exist at a time; None for 1,024 on a CPU, on a GPU as many as have logits of 1 GiB
        in fp32.
    group, targets [B, s], num_targets, averaged_over, ignore_index and the value: as in :func:`trireme.loss`.

    A weight that ``fully_shard`` keeps as a DTensor is gathered, and its gradient averaged over its mesh, as
    ``fully_shard`` does with every other: give ``averaged_over``. Raises ConfigError for one that ZeRO-3 has partitioned.
    """
    shared = sequence_group(group)
    whole = [_of_fully_shard(name, tensor) for name, tensor in (("weight", weight), ("bias", bias))]
    total = sum_of_cross_entropy(
        hidden,
        whole[0],
        targets,
        bias=whole[1],
        softcap=softcap,
        scale=scale,
        ignore_index=ignore_index,
        tokens_per_tile=tokens_per_tile,
    )
    return mean_over_ranks(total, targets, shared, num_targets, averaged_over, ignore_index)


def _of_fully_shard(name: str, tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """Collective where the tensor is a DTensor: whole; its gradient is the mean over the mesh."""
    if not hasattr(tensor, "device_mesh"):
        return tensor
    from torch.distributed.tensor import Partial

    if sum(not placement.is_replicate() for placement in tensor.placements) > 1:
        raise ConfigError(
            f"linear_cross_entropy: got a {name} placed {tensor.placements}, expected one that fully_shard cuts along one "
            "dimension of its mesh; tensor parallel heads are refused"
        )
    whole = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    return _MeanGradient.apply(whole, tensor.device_mesh.size())


class _MeanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, ranks):
        ctx.ranks = ranks
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.ranks, None
