"""Records of a run as it writes them: the lines of OUTPUT_DIR/metrics.jsonl that are new, typed (docs/metrics.md).

A run that resumes replaces the file by one without the lines of later steps, so the file is followed by its inode: what
the new file shares with the old one is not told twice.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import os
import pathlib
from typing import Any, Optional, Union

from .errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Step:
    """A finished optimizer step, over all ranks. What a run does not report is None; docs/metrics.md says each field."""

    step: int  # from 1
    stage: int  # of the context, from 0
    epoch: float
    sequence_length: int
    packing: str
    loss: Optional[float]  # None: the step was not finite and changed nothing
    target_tokens: int
    grad_norm: Optional[float]  # before clipping
    learning_rate: float
    tokens_per_second: float
    seconds: float
    mfu: float  # 0 to 1
    memory_bytes: int  # of rank 0
    memory_bytes_of_ranks: list[int]
    memory: dict[str, int]  # bytes of rank 0's tensors, by category
    tokens_seen: int
    eta_seconds: float
    loss_scale: Optional[float] = None
    skipped: Optional[bool] = None
    nonfinite_steps: Optional[int] = None
    save_seconds: Optional[float] = None
    save_background_seconds: Optional[float] = None
    resume_checked_bytes_of_ranks: Optional[list[int]] = None
    resume_read_bytes_of_ranks: Optional[list[int]] = None
    resume_seconds: Optional[float] = None
    weights_read_bytes_of_ranks: Optional[list[int]] = None
    weights_seconds: Optional[float] = None
    other: dict[str, Any] = dataclasses.field(default_factory=dict)  # of a newer program


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation on held-out tokens, after a step."""

    step: int
    packing: str
    sequence_tokens: int
    eval_loss: float
    perplexity: float
    target_tokens: int
    samples: int
    by_position: list[dict[str, Any]]  # loss and target_tokens of positions from begin to before end
    other: dict[str, Any] = dataclasses.field(default_factory=dict)


Record = Union[Step, Evaluation]


def read_record(line: Union[str, bytes]) -> Record:
    """A line of metrics.jsonl. Raises ConfigError for one that this version of the package does not know."""
    values = json.loads(line)
    kind = Evaluation if "eval_loss" in values else Step
    names = {field.name for field in dataclasses.fields(kind)} - {"other"}
    known = {name: value for name, value in values.items() if name in names}
    try:
        return kind(**known, other={name: value for name, value in values.items() if name not in names})
    except TypeError as error:
        raise ConfigError(f"trireme.train: the program wrote a record that this package does not know ({error}): {line!r}; "
                          "take both from one version of Trireme") from error  # fmt: skip


class MetricsFile:
    """Gives the records that come after it was made."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._lines: collections.deque[bytes] = collections.deque()
        self._file = self._open()
        if self._file is not None:
            self._take(self._file)
            self._lines.clear()

    def read(self) -> Optional[Record]:
        """The next record, or None where none is there yet."""
        if not self._lines:
            if self._file is None:
                self._file = self._open()
            if self._file is not None:
                self._file = self._follow(self._file)
        return read_record(self._lines.popleft()) if self._lines else None

    def close(self) -> None:
        """No read may follow."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> Optional[io.BufferedReader]:
        try:
            return open(self._path, "rb")
        except FileNotFoundError:
            return None

    def _follow(self, file: io.BufferedReader) -> io.BufferedReader:
        """Takes what is new; the file that is followed from now on."""
        self._take(file)
        new = self._open()
        if new is None:
            return file
        if os.path.sameopenfile(new.fileno(), file.fileno()):
            new.close()
            return file
        with file:
            self._take(file)  # what came before it was replaced
            _skip_shared(file, new)
        self._take(new)
        return new

    def _take(self, file: io.BufferedReader) -> None:
        """Whole lines alone: the last may still be written."""
        for line in iter(file.readline, b""):
            if not line.endswith(b"\n"):
                file.seek(-len(line), os.SEEK_CUR)
                return
            self._lines.append(line)


def _skip_shared(old: io.BufferedReader, new: io.BufferedReader) -> None:
    """Puts the new file at its first line that is not, in the same order, one of the old file."""
    old.seek(0)
    while line := new.readline():
        if line not in iter(old.readline, b""):
            new.seek(-len(line), os.SEEK_CUR)
            return
