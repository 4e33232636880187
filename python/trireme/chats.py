"""``python -m trireme.chats``: a file of chats -> a set of tokens for `trireme train` (docs/data.md).

    python -m trireme.chats --tokenizer DIR --input chats.jsonl --output /data/chats

Exit codes are those of `trireme` (docs/launching.md): 78 the request is wrong, 65 the data is.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import warnings
from typing import Iterator, NoReturn, Optional, Sequence

from .errors import DATA_AT_FAULT, REQUEST_AT_FAULT, ConfigError, DataError
from .set_files import prefix_of_set
from .token_set import SetReport
from .tokenize_chats import ANSWERS, ON_BAD_RECORD, load_tokenizer, tokenize_chats


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    try:
        with _warnings_as_lines():
            return _run(arguments)
    except (ConfigError, DataError) as error:
        print(f"trireme.chats: {type(error).__name__}: {error}", file=sys.stderr)
        return REQUEST_AT_FAULT if isinstance(error, ConfigError) else DATA_AT_FAULT
    except KeyboardInterrupt:
        print("trireme.chats: interrupted; nothing is written", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: Optional[Sequence[str]]) -> int:
    flags = _parser().parse_args(arguments)
    prefix = prefix_of_set(flags.output)
    tokenizer = load_tokenizer(flags.tokenizer)
    if flags.chat_template_path:
        tokenizer.chat_template = _text_of(flags.chat_template_path)
    with _sigterm_as_exit():
        report = tokenize_chats(
            tokenizer,
            flags.input,
            prefix,
            answers=flags.answers,
            on_bad_record=flags.on_bad_record,
            num_proc=flags.num_proc,
            overwrite=flags.overwrite,
        )
    print(_words_of(report, prefix))
    return 0


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """For who runs a command, a warning's file and line say nothing."""
    shown = warnings.showwarning
    warnings.showwarning = lambda message, *_: print(f"trireme.chats: warning: {message}", file=sys.stderr)
    try:
        yield
    finally:
        warnings.showwarning = shown


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM alone would end the program with its unfinished files left, which `with` blocks remove."""

    def leave(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # another must not cut the removal short
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    purpose = "Chats become a tokenized set, of which the assistant's tokens are predicted."
    parser = _Parser(prog="python -m trireme.chats", allow_abbrev=False, description=purpose)
    parser.add_argument("--tokenizer", required=True, help="a folder or name for transformers.AutoTokenizer")
    parser.add_argument("--input", required=True, nargs="+", metavar="FILE", help=".jsonl files, a chat a line")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="PREFIX of the files PREFIX.bin, PREFIX.idx and PREFIX.set.json")
    parser.add_argument("--answers", choices=ANSWERS, default="all", help="which of the assistant's messages are predicted (all)")
    parser.add_argument("--chat_template_path", metavar="FILE", help="a chat template in place of the tokenizer's, which the trained model gets too")
    parser.add_argument("--on_bad_record", choices=ON_BAD_RECORD, default="stop", help="of a line that is no chat, or whose answers cannot be found (stop)")
    parser.add_argument("--num_proc", type=int, default=1, metavar="N", help="processes that write the chats by the template (1); the set is the same")
    parser.add_argument("--overwrite", action="store_true", help="replace a set of that name")
    return parser


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat_template_path {path}: cannot be read: {error}") from error


def _words_of(report: SetReport, prefix: str) -> str:
    share = report.target_tokens / report.tokens
    return "\n".join(
        [
            f"wrote {prefix}.bin and {prefix}.idx",
            f"  documents           {report.documents:,}",
            f"  tokens              {report.tokens:,}",
            f"  predicted           {report.target_tokens:,} ({share:.1%})",
            f"  longest document    {report.longest_document_tokens:,} tokens",
            f"  left out            {report.documents_without_targets:,} documents without a token to predict",
            *_words_of_bad_records(report),
            f"Train on it: trireme train --train_file {prefix} --packing best_fit --max_seq_length N ..., where N is at least "
            f"{report.longest_document_tokens}",
        ]
    )


def _words_of_bad_records(report: SetReport) -> list[str]:
    if not report.bad_records:
        return []
    lines = [f"  skipped             {report.bad_records:,} lines", *(f"    {error}" for error in report.first_bad_records)]
    more = report.bad_records - len(report.first_bad_records)
    return lines + ([f"    and {more:,} more"] if more else [])


if __name__ == "__main__":
    sys.exit(main())
