"""Chats -> a set of tokens in which the assistant's alone are predicted.

    rows --chat_rows--> messages --chat_answers--> text, characters of the answers --here--> ids, is_target --> token_set

The whole chat becomes tokens at once, as it does when the model is used, and a token that holds any character of an
answer is a target. The template writes what stands at the beginning (<s>); the tokenizer adds nothing.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Union

from .answer_ends import AnswerEnds
from .chat_answers import ChatTemplate, Span
from .chat_rows import Chats, read_chats
from .errors import ConfigError, DataError
from .rendered_chats import Rendered, RenderedChat, in_batches, renderer
from .set_fingerprint import set_fingerprint
from .tested_transformers import refuse_untested_transformers
from .token_set import SetReport, write_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_CHARACTERS = 1 << 20  # the tokenizer takes so many at once, on all cores; an offset costs 100 bytes
ANSWERS = ("all", "last")
ON_BAD_RECORD = ("stop", "skip")
MOST_NAMED = 5  # rows that were left out


def tokenize_chats(
    tokenizer: Union[str, os.PathLike, PreTrainedTokenizerBase],
    chats: Chats,
    prefix: Union[str, os.PathLike],
    *,
    answers: str = "all",
    on_bad_record: str = "stop",
    num_proc: int = 1,
    overwrite: bool = False,
) -> SetReport:
    """``trireme.tokenize_chats("Qwen/Qwen3-8B", "chats.jsonl", "/data/chats")``: a set for `trireme train --train_file /data/chats`.

    tokenizer: of transformers, with a chat template; or a name or folder for AutoTokenizer.
    chats: .jsonl files, or rows: a datasets.Dataset, a list, a generator. A row has messages, a prompt and its completion, or
        ShareGPT's conversations (docs/data.md), and may have system, tools and chat_template_kwargs.
    prefix: of the files PREFIX.bin, PREFIX.idx and PREFIX.set.json, which names the tokenizer, and holds what models that are trained on the set
        get: the tokens in which answers end, and the chat template.
    answers: "all": every message of the assistant is predicted (of a row with a prompt, those of its completion); "last":
        the last alone, and what follows it is left out.
    on_bad_record: of a row that is no chat, or whose answers cannot be found: "stop" raises its error; "skip" leaves it out and
        counts it, and the report has the errors of the first few.
    num_proc: how many processes read the rows and write them by the template; the set is the same. The tokenizer's own threads
        do the rest.
    overwrite: replaces a set of that name.

    Each chat is a document. Raises ConfigError for a tokenizer without a chat template or without offsets, DataError for a
    row that cannot be read, or whose answers its template does not let be found; nothing is left behind then.
    """
    for name, value, values in (("answers", answers, ANSWERS), ("on_bad_record", on_bad_record, ON_BAD_RECORD)):
        if value not in values:
            raise ConfigError(f"{name}: got {value!r}, expected one of {values}")
    if isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1:
        raise ConfigError(f"num_proc: got {num_proc!r}, expected a number of processes, 1 or more")
    loaded = load_tokenizer(tokenizer)
    template = ChatTemplate(loaded)
    bad = _BadRecords()
    rows = read_chats(chats)
    size = max(loaded.get_vocab().values()) + 1  # ids may have gaps
    ends = AnswerEnds(loaded)
    fingerprint = functools.partial(set_fingerprint, loaded, lambda: _chat_format(loaded, ends))
    with renderer(template, answers == "last", num_proc) as render:
        chosen = _good(render(rows), bad if on_bad_record == "skip" else None)
        report = write_documents(prefix, _documents(_with_whole_offsets(loaded), chosen, ends), size, overwrite, fingerprint)
    ends.warn_of_others()
    return dataclasses.replace(report, bad_records=bad.count, first_bad_records=tuple(bad.first))


def load_tokenizer(tokenizer: Union[str, os.PathLike, PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    import transformers

    refuse_untested_transformers("chats", "by which chat templates are tested")
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    try:
        return transformers.AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"chats: the tokenizer {tokenizer} cannot be loaded: {error}") from error


class _BadRecords:
    def __init__(self) -> None:
        self.count, self.first = 0, list[str]()

    def add(self, error: str) -> None:
        self.count += 1
        if len(self.first) < MOST_NAMED:
            self.first.append(error)


def _good(rendered: Iterable[Rendered], bad: Optional[_BadRecords]) -> Iterator[RenderedChat]:
    """bad: takes the errors of rows that are left out; None: they are raised."""
    for one in rendered:
        if isinstance(one, RenderedChat):
            yield one
        elif bad is None:
            raise one
        else:
            bad.add(str(one))


def _chat_format(tokenizer: PreTrainedTokenizerBase, ends: AnswerEnds) -> dict[str, Any]:
    template = tokenizer.chat_template
    return {"answer_end_tokens": ends.tokens(), **({"chat_template": template} if isinstance(template, str) else {})}  # it may have several


def _with_whole_offsets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy whose offsets hold all characters of each token: byte-level post-processors cut spaces off, down to nothing."""
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"chats: {type(tokenizer).__name__} does not tell which characters a token is; expected a tokenizer with a tokenizer.json "
            '(a "fast" one). Of others, make ids and is_target yourself and give them to trireme.write_set'
        )
    whole = copy.deepcopy(tokenizer)
    whole.backend_tokenizer.post_processor = None  # what else it does, it does with special tokens, which are not asked for
    return whole


def _documents(tokenizer: PreTrainedTokenizerBase, rendered: Iterable[RenderedChat], ends: AnswerEnds) -> Iterator[tuple[list[int], bytes]]:
    first = True
    for batch in in_batches(rendered, lambda chat: len(chat.text), BATCH_CHARACTERS):
        if first:
            ends.warn_of_endless(batch[0].origin, batch[0].text[: batch[0].answers[-1][1]])
            first = False
        try:
            encoded = tokenizer([chat.text for chat in batch], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except Exception as error:  # tokenizers raises Exception itself
            raise DataError(f"{batch[0].origin} to {batch[-1].origin}: the tokenizer cannot read a chat: {error}") from error
        for chat, ids, offsets in zip(batch, encoded["input_ids"], encoded["offset_mapping"]):
            is_target = targets_of(offsets, chat.answers)
            if (last := last_token_of(offsets, chat)) is not None:
                ends.add(ids[last], chat.text[chat.answers[-1][1] :])
            yield ids, is_target


def last_token_of(offsets: list[Span], chat: RenderedChat) -> Optional[int]:
    """That of the last character of the chat's last answer, white space apart, which a template may have within its marks."""
    begin, end = chat.answers[-1]
    behind = bisect.bisect_left([first for first, _ in offsets], begin + len(chat.text[begin:end].rstrip()))
    return behind - 1 if behind > 0 else None


def targets_of(offsets: list[Span], answers: list[Span]) -> bytes:
    """A byte a token: 1 where it holds a character of an answer. Several tokens may be of one character, byte by byte."""
    begins, ends = [begin for begin, _ in offsets], [end for _, end in offsets]
    is_target = bytearray(len(offsets))
    for begin, end in answers:
        first, behind = bisect.bisect_right(ends, begin), bisect.bisect_left(begins, end)
        is_target[first:behind] = b"\1" * (behind - first)
    return bytes(is_target)
