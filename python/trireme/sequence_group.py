"""The ranks that share a sample, over the caller's own torch.distributed group."""

from __future__ import annotations

from typing import Optional, Union

import torch
import torch.distributed as dist

from . import _operators
from .errors import ConfigError


class SequenceGroup:
    """P ranks of a process group as U Ulysses ranks (neighbours) in each of R ring ranks, P = U x R.

    A ring is for more ranks than query heads. Where there is one, a sample lies zig-zag on the ranks, as
    :func:`trireme.shard` cuts it; without one any contiguous shares do. Everything travels in the group that was
    given: no other group is made, and making this object is not collective.

    group: a ProcessGroup that has a backend for the tensors' device (gloo, nccl); None is the default group, or this
        rank alone where torch.distributed is not initialised.
    """

    def __init__(self, group: Optional[dist.ProcessGroup] = None, *, ring: int = 1):
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ConfigError("trireme: this rank is not a member of the group that it was given")
        self.process_group = group
        self.size = group.size() if group is not None else 1
        self.rank = group.rank() if group is not None else 0
        self.ring = ring
        if ring < 1 or self.size % ring:
            raise ConfigError(f"ring: got {ring} for a group of {self.size} ranks, expected a divisor of its size")
        self.ulysses = self.size // ring
        # Under which torch.distributed knows the group; "" is this rank alone.
        self.name = group.group_name if self.size > 1 else ""

    @classmethod
    def alone(cls) -> SequenceGroup:
        """This rank alone, whatever torch.distributed is."""
        group = cls.__new__(cls)
        group.process_group, group.size, group.rank, group.ring, group.ulysses, group.name = None, 1, 0, 1, 1, ""
        return group

    def spans(self, tokens: int, rank: Optional[int] = None) -> list[tuple[int, int]]:
        """Which tokens [begin, end) of a sample of ``tokens`` tokens lie on a rank (this one), in its order."""
        borders = _operators.token_spans(tokens, self.ulysses, self.ring, self.rank if rank is None else rank)
        return list(zip(borders[::2], borders[1::2]))

    def lengths(self, tokens: int) -> list[int]:
        """How many tokens of a sample of ``tokens`` tokens lie on each rank; they differ by one at most."""
        return [sum(end - begin for begin, end in self.spans(tokens, rank)) for rank in range(self.size)]

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Each rank's ``tensor``, of one shape and dtype. Collective; no gradient."""
        if self.size == 1:
            return [tensor]
        flat = tensor.reshape(-1)  # under torch.compile Gloo takes no scalar
        parts = [torch.empty_like(flat) for _ in range(self.size)]
        dist.all_gather(parts, flat.contiguous(), group=self.process_group)
        return [part.view(tensor.shape) for part in parts]

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of each rank's ``tensor``, added in the order of ranks. Collective; no gradient."""
        return torch.stack(self.all_gather(tensor.detach())).sum(0)


Group = Union[dist.ProcessGroup, SequenceGroup, None]


def sequence_group(group: Group) -> SequenceGroup:
    return group if isinstance(group, SequenceGroup) else SequenceGroup(group)
