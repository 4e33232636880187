"""Accelerate's loaders by data ranks: all ranks of a sequence group get the same batches, other groups other ones.

    DataLoader of [B, S] batches  ->  data rank d of D: batches d, D + d, 2 D + d, ... (map-style; iterable, by samples)
    dispatched                    ->  dispatched_batches.py

What a data set or a collator draws at random in each process is no concern of a loader: the ranks of a group then have
other batches, unless process 0 alone reads (dispatch_batches=True).
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import data_loader as theirs
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from ..errors import ConfigError
from .dispatched_batches import DispatchedBatches


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
    sampler = theirs.get_sampler(data_loader)
    seed = _seed_of_all(settings) if settings.use_seedable_sampler else settings.data_seed
    seeded = settings.use_seedable_sampler and isinstance(sampler, RandomSampler)
    if dispatch:
        if settings.use_stateful_dataloader:
            raise ConfigError("use_stateful_dataloader together with dispatched batches is refused: set one of them to False")
        if seeded:  # as Accelerate does where it sees the sampler
            (data_loader.batch_sampler or data_loader.sampler).sampler = _seedable(sampler, seed)
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
        data_seed=seed,
        non_blocking=settings.non_blocking,
        use_stateful_dataloader=settings.use_stateful_dataloader,
    )
    if not dispatch and not seeded:
        _one_order(data_loader, prepared, settings.use_seedable_sampler)
    accelerator._dataloaders.append(prepared)
    return prepared


def _seed_of_all(settings) -> int:
    """Of the sampler, the same on all ranks whatever their seeds are."""
    return broadcast_object_list([torch.random.initial_seed() if settings.data_seed is None else settings.data_seed])[0]


def _seedable(sampler: RandomSampler, seed: int) -> theirs.SeedableRandomSampler:
    return theirs.SeedableRandomSampler(
        data_source=sampler.data_source, replacement=sampler.replacement, num_samples=sampler._num_samples, generator=torch.Generator(), data_seed=seed
    )


def _one_order(data_loader: DataLoader, prepared: DataLoader, from_torchs: bool) -> None:
    """One order of samples on all ranks. Accelerate leaves it to each process where there is but one data rank, and where
    seeds are asked for and the sampler has none.

    from_torchs: a sampler without a generator goes on to draw from torch's, so that its order is that of one process.
    """
    kind = "generator"
    if prepared.synchronized_generator is None:
        owner = data_loader.dataset if isinstance(data_loader.dataset, IterableDataset) else theirs.get_sampler(data_loader)
        if not hasattr(owner, "generator"):
            return
        if owner.generator is None and from_torchs:
            kind = "torch"
        elif owner.generator is None:
            owner.generator = torch.Generator()
            owner.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        prepared.synchronized_generator = owner.generator
    prepared.rng_types = [*(other for other in prepared.rng_types or [] if other != kind), kind]


def _as_it_is(batch: Any) -> Any:
    return batch
