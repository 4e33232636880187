"""The two files of a set of tokens, which appear together when both are whole, or not at all.

PREFIX.bin.partial-PID, PREFIX.idx.partial-PID  --synced to disk, renamed, the index last-->  PREFIX.bin, PREFIX.idx
"""

from __future__ import annotations

import array
import contextlib
import os
from typing import Iterable, Iterator, Union

from .errors import ConfigError, DataError


class SetFiles:
    """The two files under names of their own until they are whole. Leaving the `with` block removes what is not."""

    def __init__(self, prefix: Union[str, os.PathLike]):
        name = os.fspath(prefix)
        if not isinstance(name, str) or not os.path.basename(name):
            raise ConfigError(f"prefix: got {prefix!r}, expected FOLDER/NAME of the files NAME.bin and NAME.idx")
        name = name[:-4] if name.endswith((".bin", ".idx")) else name
        self._bin, self._idx, self._fingerprint = name + ".bin", name + ".idx", name + ".set.json"
        self._partial_bin, self._partial_idx = (f"{file}.partial-{os.getpid()}" for file in (self._bin, self._idx))
        self.bin: OutputFile

    def refuse_to_replace(self) -> None:
        for file in (self._idx, self._bin):
            if os.path.lexists(file):
                raise ConfigError(f"{file} is there already; choose another name, or overwrite=True (--overwrite) to replace the set")

    def __enter__(self) -> SetFiles:
        with _named(self._bin):
            os.makedirs(os.path.dirname(self._bin) or ".", exist_ok=True)
        self.bin = OutputFile(self._partial_bin, self._bin)
        return self

    def __exit__(self, *_: object) -> None:
        self.bin.close()
        for file in (self._partial_bin, self._partial_idx):
            with contextlib.suppress(OSError):
                os.remove(file)

    def finish(self, index: Iterable[bytes]) -> None:
        """An index, and a fingerprint of a tokenizer, never lie beside another set's tokens."""
        self.bin.sync()
        idx = OutputFile(self._partial_idx, self._idx)
        try:
            for block in index:
                idx.write(block)
            idx.sync()
        finally:
            idx.close()
        with _named(self._bin):
            for file in (self._idx, self._fingerprint):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(file)
            os.replace(self._partial_bin, self._bin)
            try:
                os.replace(self._partial_idx, self._idx)
            except OSError:
                os.remove(self._bin)
                raise
            _sync_folder(os.path.dirname(self._bin) or ".")


class OutputFile:
    """Errors name the file as it is called in the end. Python's own would not, and are also what a reader of data raises."""

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
