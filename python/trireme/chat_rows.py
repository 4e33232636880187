"""Rows that may be chats, of files of JSON lines or of data sets; a chat is read of a row when it is asked for (chat_formats.py)."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Iterable, Iterator, Mapping, Union

from .chat_formats import Chat, chat_of, kind_of, names_in
from .errors import ConfigError, DataError

Path = Union[str, os.PathLike]
Chats = Union[Path, Iterable[Path], Iterable[Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class ChatRow:
    origin: str  # as of its chat
    value: Any  # a row, or a line of a file

    def chat(self) -> Chat:
        """Raises DataError where it is none."""
        return chat_of(_row_of_line(self.value, self.origin) if isinstance(self.value, bytes) else self.value, self.origin)


def read_chats(chats: Chats) -> Iterator[ChatRow]:
    """Paths of .jsonl files, or rows. Paths that lead to no file are refused at once, before the first chat is asked for."""
    if isinstance(chats, Mapping):
        raise ConfigError(f"chats: got a {type(chats).__name__} with {names_in(chats)}, expected rows; of several splits give one")
    paths = [chats] if isinstance(chats, (str, os.PathLike)) else chats
    if isinstance(paths, (list, tuple)) and paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
        for path in paths:
            if not os.path.isfile(path):
                raise ConfigError(f"chats: {path} is no file; expected .jsonl files with a chat a line")
        return (row for path in paths for row in _rows_of_file(path))
    if not hasattr(paths, "__iter__"):
        raise ConfigError(f"chats: got {kind_of(chats)}, expected rows, or paths of .jsonl files")
    return (ChatRow(f"row {number}", row) for number, row in enumerate(paths))


def _rows_of_file(path: Path) -> Iterator[ChatRow]:
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield ChatRow(f"{name}:{number}", line)
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from error


def _row_of_line(line: bytes, origin: str) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{origin}: not JSON: {error}; expected a chat a line. A file that is one JSON list, or Parquet, becomes such lines by "
            'datasets.load_dataset(...).to_json("chats.jsonl")'
        ) from error
