"""A learning rate scheduler that goes as many steps as there are data ranks, where Accelerate's goes one a process.

Accelerate's steps once a process for each step of the optimizer, for its loaders are that much shorter. With sequence
ranks they are shorter by the data ranks alone; by processes the rate would fall sp_size times too fast.
"""

from __future__ import annotations

import copy
from typing import Any

from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils.deepspeed import DummyScheduler  # accelerate.utils has it beside DeepSpeed alone


class DataRankScheduler(AcceleratedScheduler):
    data_ranks: int

    def step(self, *args, **kwargs):
        if not self.step_with_optimizer or self.split_batches or not self.gradient_state.sync_gradients:
            super().step(*args, **kwargs)  # which goes one step, or none
            return
        if any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        for _ in range(self.data_ranks):
            # Theirs too ends quietly with a scheduler that knows its end (OneCycleLR).
            if self.scheduler._step_count <= getattr(self.scheduler, "total_steps", self.scheduler._step_count):
                self.scheduler.step(*args, **kwargs)


def prepare_scheduler(accelerator, config, scheduler):
    """``accelerator.prepare_scheduler``, by data ranks."""
    prepared = type(accelerator).prepare_scheduler(accelerator, scheduler)
    step_by_data_ranks(prepared, config.data_parallel_size)
    return prepared


def step_by_data_ranks(scheduler: Any, data_ranks: int) -> None:
    """Anything but Accelerate's own scheduler stays as it is: DeepSpeed's go one step each."""
    if type(scheduler) is AcceleratedScheduler:
        scheduler.__class__, scheduler.data_ranks = DataRankScheduler, data_ranks


def with_total_steps_of_ranks(item: Any, sequence_ranks: int) -> Any:
    """A DummyScheduler's total_num_steps, which Accelerate divides by the processes, for a division by data ranks."""
    if not isinstance(item, DummyScheduler) or item.total_num_steps is None:
        return item
    item = copy.copy(item)
    item.total_num_steps *= sequence_ranks
    return item
