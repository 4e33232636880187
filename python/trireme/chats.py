"""``python -m trireme.chats``: a file of chats -> a set of tokens for `trireme train` (docs/data.md).

    python -m trireme.chats --tokenizer DIR --input chats.jsonl --output /data/chats

Exit codes are those of `trireme` (docs/launching.md): 78 the request is wrong, 65 the data is.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, Optional, Sequence

from .errors import ConfigError, DataError
from .token_set import SetReport
from .tokenize_chats import ANSWERS, load_tokenizer, tokenize_chats

REQUEST_AT_FAULT, DATA_AT_FAULT = 78, 65


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    try:
        flags = _parser().parse_args(arguments)
        tokenizer = load_tokenizer(flags.tokenizer)
        if flags.chat_template_path:
            tokenizer.chat_template = _text_of(flags.chat_template_path)
        report = tokenize_chats(tokenizer, flags.input, flags.output, answers=flags.answers, overwrite=flags.overwrite)
    except (ConfigError, DataError) as error:
        print(f"trireme.chats: {type(error).__name__}: {error}", file=sys.stderr)
        return REQUEST_AT_FAULT if isinstance(error, ConfigError) else DATA_AT_FAULT
    print(_words_of(report, flags.output))
    return 0


def _parser() -> argparse.ArgumentParser:
    purpose = "Chats become a tokenized set, of which the assistant's tokens are predicted."
    parser = _Parser(prog="python -m trireme.chats", allow_abbrev=False, description=purpose)
    parser.add_argument("--tokenizer", required=True, help="a folder or name for transformers.AutoTokenizer")
    parser.add_argument("--input", required=True, nargs="+", metavar="FILE", help=".jsonl files, a chat a line")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="PREFIX of the two files")
    parser.add_argument("--answers", choices=ANSWERS, default="all", help="which of the assistant's messages are predicted (all)")
    parser.add_argument("--chat_template_path", metavar="FILE", help="a chat template in place of the tokenizer's")
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
            f"Train on it: trireme train --train_file {prefix} --packing best_fit --max_seq_length N ..., where N is at least "
            f"{report.longest_document_tokens}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
