"""The files of a set of tokens, which appear together when all are whole, or not at all.

PREFIX.bin.partial-PID, PREFIX.set.json.partial-PID, PREFIX.idx.partial-PID
    --synced to disk, renamed in this order-->  PREFIX.bin, PREFIX.set.json (of a tokenizer's set), PREFIX.idx

A set is there when its index is. An index, and a tokenizer's fingerprint, never lie beside another set's tokens.
"""

from __future__ import annotations

import array
import contextlib
import os
from typing import Iterable, Iterator, Optional, Union

from .errors import ConfigError, DataError


def prefix_of_set(prefix: Union[str, os.PathLike]) -> str:
    """A set's name without the .bin or .idx of one of its files."""
    name = os.fspath(prefix)
    if not isinstance(name, str) or not os.path.basename(name):
        raise ConfigError(f"prefix: got {prefix!r}, expected FOLDER/NAME of the files NAME.bin and NAME.idx")
    return name[:-4] if name.endswith((".bin", ".idx")) else name


class SetFiles:
    """The files under names of their own until they are whole. Leaving the `with` block removes what is not."""

    def __init__(self, prefix: Union[str, os.PathLike]):
        name = prefix_of_set(prefix)
        self._bin, self._fingerprint, self._idx = self._files = [name + ending for ending in (".bin", ".set.json", ".idx")]
        self._partial = {file: f"{file}.partial-{os.getpid()}" for file in self._files}
        self.bin: OutputFile

    def refuse_to_replace(self) -> None:
        for file in (self._idx, self._bin):
            if os.path.lexists(file):
                raise ConfigError(f"{file} is there already; choose another name, or overwrite=True (--overwrite) to replace the set")

    def __enter__(self) -> SetFiles:
        with _named(self._bin):
            os.makedirs(os.path.dirname(self._bin) or ".", exist_ok=True)
        self.bin = OutputFile(self._partial[self._bin], self._bin)
        return self

    def __exit__(self, *_: object) -> None:
        self.bin.close()
        _remove(self._partial.values())

    def finish(self, index: Iterable[bytes], fingerprint: Optional[str] = None) -> None:
        """Writes the index, and the fingerprint where one is given, and puts them in the place of the tokens' older set.

        What can fail for want of space is done before the older set is touched. Raises DataError for a disk that fails;
        once the older index is removed, neither set is left behind by a failure.
        """
        self.bin.sync()
        self._write(self._idx, index)
        if fingerprint is not None:
            self._write(self._fingerprint, [fingerprint.encode()])
        written = [file for file in self._files if file != self._fingerprint or fingerprint is not None]
        with _named(self._bin):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._idx)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._fingerprint)
                for file in written:
                    os.replace(self._partial[file], file)
                _sync_folder(os.path.dirname(self._bin) or ".")
            except BaseException:
                _remove(reversed(self._files))
                raise

    def _write(self, file: str, blocks: Iterable[bytes]) -> None:
        output = OutputFile(self._partial[file], file)
        try:
            for block in blocks:
                output.write(block)
            output.sync()
        finally:
            output.close()


class OutputFile:
    """An OSError of ours becomes a DataError with the final name; one of the caller's documents passes through."""

    def __init__(self, path: str, name: str):
        self._name = name
        with _named(name):
            self._file = open(path, "wb", buffering=1 << 22)

    def __str__(self) -> str:
        return self._name

    def write(self, data: Union[bytes, array.array]) -> None:
        with _named(self._name):
            self._file.write(data)

    def sync(self) -> None:
        with _named(self._name):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what is left in the buffer, of a file that is given up
            self._file.close()


def _remove(files: Iterable[str]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.remove(file)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _named(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror}; nothing was left behind. Free some space, or choose another folder") from error
