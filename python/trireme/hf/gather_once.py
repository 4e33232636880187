"""Accelerator.gather, gather_for_metrics and reduce over one rank of each sequence group.

    [n, ...] of each rank, the same within a sequence group  ->  [data ranks x n, ...] on all ranks, each sample once
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
import torch.distributed as dist
from accelerate.utils import recursively_apply

from ..sequence_group import SequenceGroup


@contextlib.contextmanager
def gather_once(accelerator, data_group: SequenceGroup) -> Iterator[None]:
    """data_group: the ranks that have this one's rank in their sequence groups. What these methods do is collective over it."""

    def gather(tensor: Any) -> Any:
        """Tensors in tuples, lists and dictionaries, as in Accelerate: joined along dim 0; a 0-dim tensor is [1]."""
        return recursively_apply(
            lambda one: torch.cat(data_group.all_gather(one.reshape(1) if one.dim() == 0 else one)),
            tensor,
            error_on_other_type=True,
        )

    def gather_for_metrics(input_data: Any, use_gather_object: bool = False) -> Any:
        """Without the samples that filled up the last batch."""
        as_objects = use_gather_object or not _all_tensors(input_data)
        gathered = _gather_objects(input_data, data_group) if as_objects else gather(input_data)
        state = accelerator.gradient_state
        if not state.end_of_dataloader or state.remainder <= 0:
            return gathered
        if as_objects:
            return gathered[: state.remainder]
        return recursively_apply(lambda one: one[: state.remainder], gathered)

    def reduce(tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        if reduction != "sum":  # a mean over the same values again is the mean
            return processes_reduce(tensor, reduction, scale)
        return recursively_apply(data_group.all_sum, tensor, error_on_other_type=True)

    def check_trigger() -> bool:
        """Of all processes: one that was set on any is seen by all."""
        del vars(accelerator)["reduce"]
        try:
            return type(accelerator).check_trigger(accelerator)
        finally:
            accelerator.reduce = reduce

    processes_reduce = accelerator.reduce
    replaced = {"gather": gather, "gather_for_metrics": gather_for_metrics, "reduce": reduce, "check_trigger": check_trigger}
    before = {name: vars(accelerator)[name] for name in replaced if name in vars(accelerator)}
    vars(accelerator).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(accelerator)[name]
        vars(accelerator).update(before)


def _all_tensors(data: Any) -> bool:
    try:
        recursively_apply(lambda one: one, data, error_on_other_type=True)
    except TypeError:
        return False
    return True


def _gather_objects(listed: Any, data_group: SequenceGroup) -> Any:
    if data_group.size == 1:
        return listed
    parts: list = [None] * data_group.size
    dist.all_gather_object(parts, listed, group=data_group.process_group)
    return [item for part in parts for item in part]
