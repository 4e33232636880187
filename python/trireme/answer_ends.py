"""The tokens in which the answers of a set of chats end, and warnings where a model would not stop there.

A base model's end of text (<|endoftext|>) is seldom what its chat template ends an answer with (<|im_end|>). PREFIX.set.json
names the latter, and `trireme train` writes it into eos_token_id of generation_config.json in its checkpoints.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AnswerEnds:
    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        if tokenizer.eos_token_id is not None:
            self._special[tokenizer.eos_token_id] = tokenizer.eos_token
        self._seen = set[int]()

    def add(self, end: int, behind: str) -> None:
        """Of a chat whose last answer ends in this token, white space apart, and has this text behind it. Where a message follows, the
        answer may end otherwise (gpt-oss: in a token that also stands within answers), and is passed over.
        """
        if not behind.strip():
            self._seen.add(end)

    def tokens(self) -> dict[str, int]:
        """Of special tokens alone: a model must not stop at a word."""
        return {self._special[number]: number for number in sorted(self._seen & self._special.keys())}

    def warn_of_endless(self, origin: str, text: str) -> None:
        """text: up to the end of an answer."""
        end = text.rstrip()
        if not any(end.endswith(token) for token in self._special.values()):
            warnings.warn(
                f"{origin}: its last answer ends in {end[-20:]!r}, which is no special token: a model that is trained so is not taught to "
                "stop. Does the chat template write one at an answer's end, and is it a token of this tokenizer?",
                stacklevel=2,
            )

    def warn_of_others(self) -> None:
        """Of ends at which a model of this tokenizer does not stop."""
        stops = {self._tokenizer.eos_token_id} - {None}
        if not stops.issuperset(self.tokens().values()):
            stops.update(_stops_of_model(str(self._tokenizer.name_or_path)))
        if others := {token: number for token, number in self.tokens().items() if number not in stops}:
            known = {self._tokenizer.convert_ids_to_tokens(number): number for number in sorted(stops)}
            warnings.warn(
                f"the answers end in {_named(others)}, and a model of this tokenizer stops at {_named(known)} (eos_token, and eos_token_id of "
                "generation_config.json), so it would run on behind each answer. `trireme train` on this set adds the former to eos_token_id of "
                "generation_config.json in its checkpoints; with another trainer, add it yourself",
                stacklevel=3,
            )


def _stops_of_model(name: str) -> list[int]:
    """eos_token_id of the generation_config.json beside the tokenizer, where there is one."""
    import transformers

    try:
        stops = transformers.GenerationConfig.from_pretrained(name).eos_token_id if name else None
    except (OSError, ValueError):
        stops = None
    return stops if isinstance(stops, list) else [] if stops is None else [stops]


def _named(tokens: dict[str, int]) -> str:
    return " and ".join(f"{token!r} ({number})" for token, number in tokens.items()) or "no token"
