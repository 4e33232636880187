"""Chats as their template writes them: in this process, or spread over several, in the order of their rows all the same.

    rows --batches, dealt out in turn--> num_proc processes --texts and answers, or errors--> read in turn

A process gets its next batch when its last one is read, so none waits to write to one that writes to it. It ends with its input,
also where this process is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from .chat_answers import ChatTemplate, Span
from .chat_rows import ChatRow
from .errors import ConfigError, DataError

BATCH_ROWS, BATCH_BYTES = 64, 1 << 20  # whichever comes first; the bytes of lines
# Interrupts are for the process that asks, also while this one still imports.
SERVE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from trireme.rendered_chats import serve; serve({answers})"


@dataclasses.dataclass(frozen=True)
class RenderedChat:
    origin: str  # in errors: FILE:LINE, or the row's number
    text: str
    answers: list[Span]


Rendered = Union[RenderedChat, DataError]  # an error: why it is none


@contextlib.contextmanager
def renderer(template: ChatTemplate, last_alone: bool, num_proc: int) -> Iterator[Callable[[Iterable[ChatRow]], Iterator[Rendered]]]:
    """Gives a function of rows to what becomes of each, which raises the first ConfigError. The processes are there within the block."""
    if num_proc == 1:
        yield lambda rows: (_rendered(template, row, last_alone) for row in rows)
        return
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_Process(num_proc)) for _ in range(num_proc)]
        for process in processes:
            process.write("the tokenizer", (template, last_alone))
        yield lambda rows: _in_turn(processes, rows)


def serve(descriptor: int) -> None:
    """A process of several: its input is (template, last_alone) and then batches; what becomes of each batch goes to `descriptor`."""
    answers = os.fdopen(descriptor, "wb")
    with contextlib.suppress(EOFError, BrokenPipeError):  # the process that asks has ended
        template, last_alone = pickle.load(sys.stdin.buffer)
        while batch := pickle.load(sys.stdin.buffer):
            pickle.dump([_rendered_or_refused(template, row, last_alone) for row in batch], answers)
            answers.flush()


def _rendered(template: ChatTemplate, row: ChatRow, last_alone: bool) -> Rendered:
    try:
        chat = row.chat()
        return RenderedChat(chat.origin, *template.answers_of(chat, last_alone))
    except DataError as error:
        return error


def _rendered_or_refused(template: ChatTemplate, row: ChatRow, last_alone: bool) -> Union[Rendered, ConfigError]:
    try:
        return _rendered(template, row, last_alone)
    except ConfigError as error:
        return error


def _in_turn(processes: list[_Process], rows: Iterable[ChatRow]) -> Iterator[Rendered]:
    failure, busy = None, list[_Process]()
    for process, batch in zip(itertools.cycle(processes), in_batches(_with_failure(rows), _line_bytes, BATCH_BYTES, BATCH_ROWS)):
        if len(busy) == len(processes):  # then the first of them is this one
            yield from busy.pop(0).read()
        if isinstance(batch[-1], Exception):
            failure = batch.pop()
        if batch:
            process.write(f"{batch[0].origin} to {batch[-1].origin}", batch)
            busy.append(process)
    for process in busy:
        yield from process.read()
    if failure:
        raise failure


def _with_failure(rows: Iterable[ChatRow]) -> Iterator[Union[ChatRow, Exception]]:
    """An error in getting the next row comes behind the rows before, as where each is rendered before the next is asked for."""
    try:
        yield from rows
    except Exception as error:
        yield error


def _line_bytes(row: Union[ChatRow, Exception]) -> int:
    return len(row.value) if isinstance(row, ChatRow) and isinstance(row.value, bytes) else 0


def in_batches(items: Iterable[Any], size_of: Callable[[Any], int], size: int, most: Optional[int] = None) -> Iterator[list[Any]]:
    """Each ends with the item that fills it up to `size`, or is its `most`-th."""
    batch: list[Any] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size_of(item)
        if len(batch) == most or filled >= size:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


class _Process:
    def __init__(self, num_proc: int):
        path = os.pathsep.join(filter(None, sys.path))  # where this process found what it imported
        read, write = os.pipe()  # not its stdout, on which libraries print
        self._answers = os.fdopen(read, "rb")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(answers=write)],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=[write],
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(write)
        self._num_proc = num_proc

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._answers.close()
        with contextlib.suppress(OSError):  # of what is not yet written
            self._process.stdin.close()
        self._process.wait()

    def write(self, what: str, value: Any) -> None:
        try:
            data = pickle.dumps(value)
        except Exception as error:  # a value's own code may raise anything
            raise ConfigError(f"num_proc: {what} cannot be handed to another process: {error}; leave num_proc out") from error
        with self._named():
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def read(self) -> Iterator[Rendered]:
        with self._named():
            answers = pickle.load(self._answers)
        for answer in answers:
            if isinstance(answer, ConfigError):
                raise answer
            yield answer

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            self._process.kill()  # where it has not ended yet
            raise ConfigError(
                f"num_proc: one of {self._num_proc} processes ended (exit code {self._process.wait()}), perhaps for want of memory; if it said why, that "
                "stands above. Give fewer"
            ) from error
