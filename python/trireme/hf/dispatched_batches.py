"""Batches that process 0 alone reads (dispatch_batches=True), by data ranks.

    process 0 reads D batches and sends them to all  ->  data rank d of D takes the d-th
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional

from accelerate import data_loader as theirs
from accelerate.state import GradientState, PartialState
from accelerate.utils import broadcast_object_list, concatenate, find_batch_size, recursively_apply
from torch.utils.data import DataLoader, IterableDataset

from ..errors import ConfigError


class DispatchedBatches(IterableDataset):
    """The batches of one data rank, read by process 0 and sent to all. To iterate is collective over all processes.

    Of several data ranks, a last round that is not full is filled up with rows of the first, as Accelerate does with even
    batches. How many rows of the last round are real goes to Accelerate's gradient state, for gather_for_metrics. A collator that
    packs gives fewer rows than samples: its batches stay as they are.
    """

    def __init__(self, source: DataLoader, data_rank: int, data_ranks: int, split_batches: bool):
        self.source, self.data_rank, self.data_ranks, self.split_batches = source, data_rank, data_ranks, split_batches
        # A loader with a batch sampler has none of its own.
        self.batch_size = source.batch_size or getattr(source.batch_sampler, "batch_size", None)
        if split_batches and (self.batch_size is None or self.batch_size % data_ranks):
            raise ConfigError(
                f"split_batches: got batches of {self.batch_size} samples for {data_ranks} data ranks, expected a multiple"
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
        """On process 0: each data rank's batch, and of a last round that may be short how many rows are real, else 0."""
        per_round = 1 if self.split_batches else self.data_ranks
        size = self.batch_size
        first: list = []
        taken: list = []
        packed = False
        for batch, last in _and_whether_last(self.source):
            taken.append(batch)
            first = first or taken
            if size is None and self.source.batch_sampler is not None:  # one that does not tell it
                size = find_batch_size(batch)
            if last and not self.source.drop_last:
                yield self._filled(taken, per_round, first, size, packed)
            elif len(taken) == per_round:
                yield self._of_ranks(taken), 0
                taken = []
            packed = packed or size is None or find_batch_size(batch) != size

    def _filled(self, taken: list, per_round: int, first: list, size: Optional[int], packed: bool) -> tuple[list, int]:
        """The last round. size: samples of a full batch, where the loader makes batches; packed: some batch before had another number of rows."""
        if self.data_ranks == 1:
            return self._of_ranks(taken), 0 if packed or size is None else find_batch_size(taken[0])
        wanted = 0
        if self.split_batches:
            wanted = -(-find_batch_size(taken[0]) // self.data_ranks) * self.data_ranks
        elif not packed and taken[-1] is not first[0]:  # one batch alone does not tell whether it is packed
            wanted = size
        short = wanted > 0 and find_batch_size(taken[-1]) < wanted
        real = sum(map(find_batch_size, taken)) if short or len(taken) < per_round else 0
        filled = [*taken[:-1], _completed(taken[-1], first[0], wanted) if short else taken[-1]]
        again = filled if first is taken else first
        filled += [again[i % len(again)] for i in range(per_round - len(filled))]
        return self._of_ranks(filled), real

    def _of_ranks(self, batches: list) -> list:
        if not self.split_batches:
            return batches
        rows = find_batch_size(batches[0])
        if rows % self.data_ranks:
            raise ConfigError(
                f"split_batches: got a batch of {rows} rows for {self.data_ranks} data ranks, expected a multiple; a collator that packs "
                "gives fewer rows than samples: leave split_batches out"
            )
        each = rows // self.data_ranks
        spans = [slice(rank * each, (rank + 1) * each) for rank in range(self.data_ranks)]
        return [recursively_apply(lambda one: one[span], batches[0]) for span in spans]


def _and_whether_last(batches: Iterable) -> Iterator[tuple[Any, bool]]:
    batches = iter(batches)
    for batch in batches:
        for ahead in batches:
            yield batch, False
            batch = ahead
        yield batch, True


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
