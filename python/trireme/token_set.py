"""Writes a set of tokens, PREFIX.bin and PREFIX.idx (docs/data.md), from documents of ids as they come.

    document   p p p p a a a p p a a a     p: read, and not predicted; a: predicted
    sequences  4, mode 1  3  2     3       one for each stretch, with a mode: 1, a prompt; 0, predicted

The tokens go to the disk at once; sizes, modes and where documents begin stay in memory. A set without prompts has no
modes: the file is then what it is in Megatron-LM.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import os
import struct
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

from .errors import ConfigError, DataError
from .set_files import OutputFile, SetFiles

UINT16, INT32 = (8, "H"), (4, "i")  # the code in .idx, and array's letter
WIDE_VOCABULARY = 65500  # Megatron-LM's: int32 from here on
LONGEST_TOKENS = 2**31 - 1
PREDICTED, PROMPT = 0, 1
INDEX_BLOCK = 1 << 16  # entries

Document = Union[Sequence[int], tuple[Sequence[int], Sequence[int]]]


@dataclasses.dataclass(frozen=True)
class SetReport:
    """What was written."""

    documents: int
    tokens: int
    target_tokens: int  # those that are predicted within their document: never its first
    longest_document_tokens: int
    documents_without_targets: int  # left out, and in no other count
    bad_records: int = 0  # of tokenize_chats with on_bad_record="skip": left out, and in no other count
    first_bad_records: tuple[str, ...] = ()  # the errors of the first few


def write_set(prefix: Union[str, os.PathLike], documents: Iterable[Document], vocab_size: int, *, overwrite: bool = False) -> SetReport:
    """``trireme.write_set("/data/mine", ([*tokenizer(text).input_ids, eos] for text in texts), len(tokenizer))``.

    prefix: of the files PREFIX.bin and PREFIX.idx, which `trireme train --train_file PREFIX` reads.
    documents: each the ids of its tokens, all of them predicted, or a pair (ids, is_target) of the same length: the
        model reads the tokens whose is_target is 0 or False, and is not trained to predict them. Lists, arrays or
        tensors; read once, one after another.
    vocab_size: ids are 0 to vocab_size - 1.
    overwrite: replaces a set of that name.

    A document in which no token but the first is a target is left out, and counted: nothing predicts a document's first
    token. The files appear together when all is written; nothing is left behind by a failure. Raises ConfigError where
    the set is there already, DataError for a document that cannot be written (by its number, from 0), a set without any,
    and a disk that fails.
    """
    return write_documents(prefix, documents, vocab_size, overwrite)


def write_documents(
    prefix: Union[str, os.PathLike],
    documents: Iterable[Document],
    vocab_size: int,
    overwrite: bool,
    fingerprint_of: Optional[Callable[[SetReport, int, int], str]] = None,
) -> SetReport:
    """write_set, with a text for PREFIX.set.json: fingerprint_of(report, largest id, tokens of prompts), when all is written."""
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or not 0 < vocab_size <= 2**31:
        raise ConfigError(f"vocab_size: got {vocab_size!r}, expected the number of ids, 1 to {2**31}")
    files = SetFiles(prefix)
    if not overwrite:
        files.refuse_to_replace()
    with files:
        rows = _Rows(files.bin, UINT16 if vocab_size < WIDE_VOCABULARY else INT32, vocab_size)
        for number, document in enumerate(documents):
            rows.add(*_parts_of(document, number), number)
        if not rows.sizes:
            raise DataError(
                f"{files.bin}: there is nothing to write: of {rows.left_out} documents none has a token to predict behind "
                "its first; is the input empty, or is_target always 0?"
            )
        report = SetReport(len(rows.first_sequences) - 1, rows.tokens, rows.targets, rows.longest, rows.left_out)
        files.finish(rows.index(), fingerprint_of(report, rows.largest_id, rows.prompt_tokens) if fingerprint_of else None)
    return report


class _Rows:
    """The documents so far: their tokens in the file, the rest here."""

    def __init__(self, bin_file: OutputFile, kind: tuple[int, str], vocab_size: int):
        self._file, (self._code, self._letter), self._vocab_size = bin_file, kind, vocab_size
        self.sizes, self.modes = array.array("i"), bytearray()
        self.first_sequences = array.array("q", [0])
        self.tokens = self.targets = self.longest = self.left_out = self.largest_id = self.prompt_tokens = 0

    def add(self, ids: array.array, is_target: Optional[bytes], number: int) -> None:
        """is_target: a byte a token, 1 or 0; None: all are."""
        self._check_ids(ids, number)
        targets = max(len(ids) - 1, 0) if is_target is None else sum(is_target[1:])
        if targets == 0:
            self.left_out += 1
            return
        for mode, size in [(PREDICTED, len(ids))] if is_target is None else _stretches(is_target):
            self.sizes.append(size)
            self.modes.append(mode)
        self.first_sequences.append(len(self.sizes))
        self._file.write(array.array(self._letter, ids))
        self.tokens += len(ids)
        self.prompt_tokens += 0 if is_target is None else len(ids) - sum(is_target)
        self.largest_id = max(self.largest_id, max(ids))
        self.targets += targets
        self.longest = max(self.longest, len(ids))

    def _check_ids(self, ids: array.array, number: int) -> None:
        if len(ids) > LONGEST_TOKENS:
            raise DataError(f"{self._file}: document {number} has {len(ids)} tokens; the format holds at most {LONGEST_TOKENS} in one: split it")
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            wrong = next(index for index, one in enumerate(ids) if not 0 <= one < self._vocab_size)
            raise DataError(
                f"{self._file}: document {number} has the id {ids[wrong]} at token {wrong}, outside the vocabulary of "
                f"{self._vocab_size} ids; was another tokenizer's size given?"
            )

    def index(self) -> Iterator[bytes]:
        width = array.array(self._letter).itemsize
        yield b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, self._code, len(self.sizes), len(self.first_sequences))
        yield self.sizes.tobytes()
        begin_bytes = 0
        for first in range(0, len(self.sizes), INDEX_BLOCK):
            begins = array.array("q")
            for size in self.sizes[first : first + INDEX_BLOCK]:
                begins.append(begin_bytes)
                begin_bytes += size * width
            yield begins.tobytes()
        yield self.first_sequences.tobytes()
        if any(self.modes):
            yield bytes(self.modes)


def _stretches(is_target: bytes) -> Iterator[tuple[int, int]]:
    for target, stretch in itertools.groupby(is_target):
        yield (PREDICTED if target else PROMPT), sum(1 for _ in stretch)


def _parts_of(document: Any, number: int) -> tuple[array.array, Optional[bytes]]:
    try:
        document = document.tolist() if hasattr(document, "tolist") else document
        if len(document) == 2 and hasattr(document[0], "__len__"):
            ids, is_target = _ids_of(document[0]), _flags_of(document[1])
        else:
            ids, is_target = _ids_of(document), None
    except (TypeError, ValueError, OverflowError, LookupError) as error:
        raise DataError(
            f"document {number}: {error}; expected a sequence of ids, or a pair (ids, is_target) whose is_target are 0 and 1, "
            f"got {_shortened(document)}"
        ) from error
    if is_target is not None and len(is_target) != len(ids):
        raise DataError(f"document {number} has {len(ids)} ids and {len(is_target)} values of is_target; expected one for each")
    return ids, is_target


def _ids_of(ids: Any) -> array.array:
    return array.array("q", ids.tolist() if hasattr(ids, "tolist") else list(ids))


def _flags_of(flags: Any) -> bytes:
    flags = bytes(flags.tolist() if hasattr(flags, "tolist") else list(flags))
    if flags and max(flags) > 1:
        raise ValueError(f"is_target holds {max(flags)}")
    return flags


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
