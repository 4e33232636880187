"""Documents of any length as one batch, for models whose attention is Trireme's or anyone's.

    n features, documents of l_i tokens  --padded-->  input_ids, attention_mask, position_ids, labels [n, S]
                                         --packed-->  input_ids, position_ids, labels [rows, S]

Trireme shares any length between ranks, so padding is only what samples of a batch need beside each other, and what
``pad_to_multiple_of`` asks for. What is padding is told by position, never by value: an end-of-text token that is also the
pad token keeps its target. The first token of a document is nobody's target, so that no document predicts across its
border; what each token predicts is shifted in the whole sample, before ranks share it (trireme.shard, or here).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence

import torch

from .batch import restarts, shifted_labels
from .errors import ConfigError
from .valid_tokens import valid_tokens

IGNORED = -100  # the label of what is no target
COLUMNS = {"input_ids", "labels", "attention_mask", "position_ids", "seq_lengths"}  # of a feature
_WORKERS = 256


@dataclasses.dataclass(frozen=True)
class PaddingSummary:
    """Over all batches of a collator so far."""

    tokens: int  # of documents
    padding: int  # tokens that were added
    truncated: int  # tokens that were cut off

    @property
    def share(self) -> float:
        """Of padding in what the model computes, 0 to 1."""
        return self.padding / max(self.tokens + self.padding, 1)

    def __str__(self) -> str:
        cut = f", {self.truncated} cut off" if self.truncated else ""
        return f"{self.tokens} tokens, {self.padding} of padding ({self.share:.1%}){cut}"


@dataclasses.dataclass
class LongContextDataCollator:
    """``DataLoader(data, collate_fn=LongContextDataCollator(tokenizer))``; also the ``data_collator`` of a Trainer.

    tokenizer: of which the pad token and the side of padding are taken; or give them.
    pad_token_id: fills up ``input_ids``. It need not be a token of its own.
    padding_side: "right", or "left".
    max_length: of a row, in tokens. A longer document is an error that names it.
    truncation: cuts a longer document after ``max_length`` tokens instead.
    pad_to_multiple_of: rows are padded to a multiple of it.
    packing: documents lie one behind the other in as few rows as first fit finds: in one without ``max_length``.
        ``position_ids`` restart with each, and there is no ``attention_mask``; padding is a document of its own.
    shift_labels: the batch has ``shift_labels``, what each token predicts, in place of ``labels``. For loops that cut
        a batch themselves; trireme.shard takes either.

    A feature has ``input_ids``, a list or tensor of l tokens, and may have ``labels`` of the same length (else they are
    the input_ids), an ``attention_mask`` with 0 at its ends (those tokens are dropped), and, packed already,
    ``position_ids`` that restart or TRL's ``seq_lengths``. Other columns are refused by name.

    Returns int64 tensors on the CPU. ``summary`` tells how much padding was added, by workers of a DataLoader too.
    """

    tokenizer: Optional[Any] = None
    pad_token_id: Optional[int] = None
    padding_side: Optional[str] = None
    max_length: Optional[int] = None
    truncation: bool = False
    pad_to_multiple_of: int = 1
    packing: bool = False
    shift_labels: bool = False

    def __post_init__(self):
        if self.pad_token_id is None:
            self.pad_token_id = getattr(self.tokenizer, "pad_token_id", None)
        if self.pad_token_id is None:
            raise ConfigError("LongContextDataCollator: no pad token; give pad_token_id, or set tokenizer.pad_token (eos_token will do)")
        if self.padding_side is None:
            self.padding_side = getattr(self.tokenizer, "padding_side", "right")
        if self.padding_side not in ("right", "left"):
            raise ConfigError(f"padding_side: got {self.padding_side!r}, expected 'right' or 'left'")
        if self.pad_to_multiple_of is None:  # as transformers' collators have it
            self.pad_to_multiple_of = 1
        if self.pad_to_multiple_of < 1 or (self.max_length is not None and self.max_length < 1):
            raise ConfigError(f"got max_length {self.max_length}, pad_to_multiple_of {self.pad_to_multiple_of}, expected 1 or more")
        if self.max_length is not None and self.max_length % self.pad_to_multiple_of:
            raise ConfigError(f"max_length: got {self.max_length}, expected a multiple of pad_to_multiple_of, {self.pad_to_multiple_of}")
        if self.truncation and self.max_length is None:
            raise ConfigError("truncation: got no max_length to cut at")
        # One row a process, for workers count too: 0 is the main process.
        self._counts = torch.zeros(_WORKERS + 1, 3, dtype=torch.int64).share_memory_()

    @property
    def summary(self) -> PaddingSummary:
        return PaddingSummary(*self._counts.sum(0).tolist())

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if len({"labels" in feature for feature in features}) != 1:
            raise ConfigError(f"LongContextDataCollator: got {len(features)} features, some of them with labels; expected all or none")
        rows = [self._documents(feature, index) for index, feature in enumerate(features)]
        tokens_before = _tokens(rows)
        rows = [self._limited(row, index) for index, row in enumerate(rows)]
        packed = self.packing or any(len(row) > 1 for row in rows)
        if self.packing:
            rows = self._first_fit([document for row in rows for document in row])
        longest = max(_tokens([row]) for row in rows)
        length = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        names = ("input_ids", "labels", "position_ids", "attention_mask")
        batch = dict(zip(names, map(torch.stack, zip(*(self._filled(row, length) for row in rows)))))
        if packed:
            del batch["attention_mask"]
        if self.shift_labels:
            batch["shift_labels"] = shifted_labels(batch.pop("labels"))
        tokens = _tokens(rows)
        self._count(tokens, len(rows) * length - tokens, tokens_before - tokens)
        return batch

    def _documents(self, feature: Mapping[str, Any], index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(input_ids, labels) of each document of a feature, [l] each."""
        unknown = sorted(set(feature) - COLUMNS)
        if unknown or "input_ids" not in feature:
            raise ConfigError(
                f"LongContextDataCollator: feature {index} has the columns {sorted(feature)}, expected input_ids and of "
                f"{sorted(COLUMNS - {'input_ids'})} what there is; remove others from the data set"
            )
        given = {name: torch.as_tensor(value, dtype=torch.int64) for name, value in feature.items() if value is not None}
        ids = given["input_ids"]
        wrong = {name: tuple(value.shape) for name, value in given.items() if name != "seq_lengths" and value.shape != ids.shape}
        if ids.dim() != 1 or ids.numel() == 0 or wrong:
            raise ConfigError(
                f"LongContextDataCollator: feature {index} has input_ids of {tuple(ids.shape)}"
                + "".join(f", {name} of {shape}" for name, shape in wrong.items())
                + "; expected one dimension, at least a token, and the same length"
            )
        if "attention_mask" in given:
            keep = valid_tokens(given.pop("attention_mask"), f"LongContextDataCollator: feature {index}")
            held = keep.nonzero().flatten()
            if len(held) == 0 or len(held) != held[-1] - held[0] + 1:
                raise ConfigError(
                    f"LongContextDataCollator: feature {index} has an attention_mask with a hole or without a token; expected 0 "
                    "at its ends only"
                )
            given = {name: value[keep] if name != "seq_lengths" else value for name, value in given.items()}
        ids, labels = given["input_ids"], given.get("labels", given["input_ids"])
        lengths = _lengths(given, len(ids), index)
        documents = []
        for part, targets in zip(ids.split(lengths), labels.split(lengths)):
            targets = targets.clone()
            targets[0] = IGNORED
            documents.append((part, targets))
        return documents

    def _limited(self, row, index: int):
        if self.max_length is None:
            return row
        # In a row that came packed they stay together; rows that are packed here hold single documents.
        whole = [_tokens([row])] if not self.packing else [len(ids) for ids, _ in row]
        if max(whole) <= self.max_length:
            return row
        if not self.truncation or (len(row) > 1 and not self.packing):
            raise ConfigError(
                f"LongContextDataCollator: feature {index} has {max(whole)} tokens, more than max_length {self.max_length}; "
                "cut it into several, raise max_length, or set truncation for a single document"
            )
        return [(ids[: self.max_length], labels[: self.max_length]) for ids, labels in row]

    def _first_fit(self, documents):
        rows: list = []
        for document in documents:
            room = (row for row in rows if self.max_length is None or _tokens([row]) + len(document[0]) <= self.max_length)
            row = next(room, None)
            if row is None:
                rows.append([document])
            else:
                row.append(document)
        return rows

    def _filled(self, row, length: int):
        """A row's (input_ids, labels, position_ids, attention_mask), [length] each; padding counts from 0 as a document does."""
        ids, labels = (torch.cat(parts) for parts in zip(*row))
        padding = length - len(ids)
        positions = [torch.arange(len(part)) for part, _ in row]
        parts = [
            [ids, ids.new_full((padding,), self.pad_token_id)],
            [labels, labels.new_full((padding,), IGNORED)],
            [torch.cat(positions), torch.arange(padding)],
            [torch.ones_like(ids), ids.new_zeros(padding)],
        ]
        return [torch.cat(pair if self.padding_side == "right" else pair[::-1]) for pair in parts]

    def _count(self, *numbers: int) -> None:
        worker = torch.utils.data.get_worker_info()
        self._counts[0 if worker is None else 1 + worker.id % _WORKERS] += torch.tensor(numbers)


def _tokens(rows) -> int:
    return sum(len(ids) for row in rows for ids, _ in row)


def _lengths(given: Mapping[str, torch.Tensor], tokens: int, index: int) -> list[int]:
    """Of the documents in a feature."""
    if "seq_lengths" in given:
        lengths = given["seq_lengths"].tolist()
        if sum(lengths) != tokens or min(lengths) < 1:
            raise ConfigError(f"LongContextDataCollator: feature {index} has seq_lengths {lengths} for {tokens} tokens")
        return lengths
    if "position_ids" not in given:
        return [tokens]
    starts = restarts(given["position_ids"]).nonzero().flatten() + 1
    return torch.diff(torch.cat([torch.tensor([0]), starts, torch.tensor([tokens])])).tolist()
