"""Accelerate's loaders by data ranks: all ranks of a sequence group get the same batches, other groups other ones.

    DataLoader of [B, S] batches  ->  data rank d of D: batches d, D + d, 2 D + d, ... (map-style; iterable, by samples)
    dispatched                    ->  process 0 reads D batches and sends them, data rank d takes the d-th

What a data set or a collator draws at random in each process is no concern of a loader: the ranks of a group then have
other batches, unless process 0 alone reads (dispatch_batches=True).
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
from accelerate import data_loader as theirs
from accelerate.state import GradientState, PartialState
from accelerate.utils import broadcast_object_list, concatenate, find_batch_size, recursively_apply
from torch.utils.data import DataLoader, IterableDataset

from ..errors import ConfigError


def prepare_data_loader(accelerator, config, data_loader, device_placement=None, slice_fn_for_dispatch=None):
    """``accelerator.prepare_data_loader``, by data ranks. Collective."""
    if getattr(data_loader, "_is_accelerate_prepared", False):
        return type(accelerator).prepare_data_loader(accelerator, data_loader)
    if slice_fn_for_dispatch is not None:
        raise ConfigError("slice_fn_for_dispatch: it slices by processes, not by data ranks: leave it out")
    settings = accelerator.dataloader_config
    if device_placement is None:
        device_placement = accelerator.device_placement
    dispatch = settings.dispatch_batches
    if dispatch is None:
        dispatch = device_placement and isinstance(data_loader.dataset, IterableDataset)
    data_ranks, data_rank = config.data_parallel_size, config.data_rank
    if dispatch:
        if settings.use_stateful_dataloader:
            raise ConfigError("use_stateful_dataloader together with dispatched batches is refused: set one of them to False")
        batches = DispatchedBatches(data_loader, data_rank, data_ranks, settings.split_batches)
        data_loader, data_ranks, data_rank = DataLoader(batches, batch_size=None, collate_fn=_as_it_is), 1, 0
    prepared = theirs.prepare_data_loader(
        data_loader,
        accelerator.device,
        num_processes=data_ranks,
        process_index=data_rank,
        split_batches=settings.split_batches and not dispatch,
        put_on_device=device_placement,
        rng_types=list(accelerator.rng_types),
        dispatch_batches=False,
        even_batches=settings.even_batches,
        use_seedable_sampler=settings.use_seedable_sampler,
        data_seed=_seed_of_all(settings) if settings.use_seedable_sampler else settings.data_seed,
        non_blocking=settings.non_blocking,
        use_stateful_dataloader=settings.use_stateful_dataloader,
    )
    if not dispatch and not settings.use_seedable_sampler:
        _one_order(data_loader, prepared)
    accelerator._dataloaders.append(prepared)
    return prepared


def _seed_of_all(settings) -> int:
    """Of the sampler, the same on all ranks whatever their seeds are."""
    return broadcast_object_list([torch.random.initial_seed() if settings.data_seed is None else settings.data_seed])[0]


def _one_order(data_loader: DataLoader, prepared: DataLoader) -> None:
    """One order of samples on all ranks. Accelerate leaves it to each process where there is but one data rank."""
    if prepared.synchronized_generator is None:
        owner = data_loader.dataset if isinstance(data_loader.dataset, IterableDataset) else theirs.get_sampler(data_loader)
        if not hasattr(owner, "generator"):
            return
        if owner.generator is None:
            owner.generator = torch.Generator()
            owner.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        prepared.synchronized_generator = owner.generator
    prepared.rng_types = [*(kind for kind in prepared.rng_types or [] if kind != "generator"), "generator"]


class DispatchedBatches(IterableDataset):
    """The batches of one data rank, read by process 0 and sent to all. To iterate is collective over all processes.

    A last round that is not full is filled up with samples of the first, as Accelerate does with even batches; how many
    of its samples are real goes to Accelerate's gradient state, for gather_for_metrics.
    """

    def __init__(self, source: DataLoader, data_rank: int, data_ranks: int, split_batches: bool):
        self.source, self.data_rank, self.data_ranks, self.split_batches = source, data_rank, data_ranks, split_batches
        if split_batches and (source.batch_size is None or source.batch_size % data_ranks):
            raise ConfigError(
                f"split_batches: got batches of {source.batch_size} samples for {data_ranks} data ranks, expected a multiple"
            )

    def __len__(self) -> int:
        if self.split_batches:
            return len(self.source)
        return (len(self.source) + (0 if self.source.drop_last else self.data_ranks - 1)) // self.data_ranks

    def set_epoch(self, epoch: int) -> None:
        for part in (self.source.dataset, self.source.batch_sampler, theirs.get_sampler(self.source)):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        rounds = self._rounds() if PartialState().process_index == 0 else None
        while True:
            failure: list = []  # process 0 raises its own error, and the others do not wait for it
            sent, remainder, words = broadcast_object_list([self._next_round(rounds, failure)])[0]
            if words is not None:
                raise failure[0] if failure else ConfigError(f"process 0 could not read a batch: {words}")
            if sent is None:
                return
            if remainder:
                GradientState().active_dataloader.remainder = remainder
            yield sent[self.data_rank]

    def _next_round(self, rounds: Optional[Iterator], failure: list) -> tuple:
        if rounds is None:
            return None, 0, None
        try:
            return *next(rounds, (None, 0)), None
        except Exception as error:
            failure.append(error)
            return None, 0, repr(error)

    def _rounds(self) -> Iterator[tuple[list, int]]:
        """On process 0: each data rank's batch, and how many samples are real in a round that was filled up, else 0."""
        per_round = 1 if self.split_batches else self.data_ranks
        first: list = []
        taken: list = []
        for batch in self.source:
            taken.append(batch)
            first = first or taken
            if len(taken) == per_round:
                yield self._filled(taken, per_round, first)
                taken = []
        if taken and not self.source.drop_last:
            yield self._filled(taken, per_round, first)

    def _filled(self, taken: list, per_round: int, first: list) -> tuple[list, int]:
        size = self.source.batch_size
        short = size is not None and find_batch_size(taken[-1]) < size
        real = sum(find_batch_size(batch) for batch in taken) if short or len(taken) < per_round else 0
        filled = [*taken[:-1], _completed(taken[-1], first[0], size) if short else taken[-1]]
        again = filled if first is taken else first
        filled = filled + [again[place % len(again)] for place in range(per_round - len(filled))]
        if self.split_batches:
            each = size // self.data_ranks
            spans = [slice(rank * each, (rank + 1) * each) for rank in range(self.data_ranks)]
            filled = [recursively_apply(lambda one: one[span], filled[0]) for span in spans]
        return filled, real


def _completed(batch: Any, first: Any, size: int) -> Any:
    try:
        while find_batch_size(batch) < size:
            batch = concatenate([batch, first])
    except RuntimeError as error:
        raise ConfigError(
            f"the last batch has {find_batch_size(batch)} samples of {size}, and samples of the first have another length "
            "and cannot fill it up: set drop_last, or pad to one length"
        ) from error
    return recursively_apply(lambda one: one[:size], batch)


def _as_it_is(batch: Any) -> Any:
    return batch
