"""Which tokenizer made a set: PREFIX.set.json, as `trireme tokenize` writes it, and `trireme train` and `trireme mix` compare it. Of chats
also how they are written: the tokens in which answers end, and the chat template (trireme/data/chat_format.h).
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Optional

from .token_set import SetReport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def set_fingerprint(
    tokenizer: PreTrainedTokenizerBase, chat_format: Callable[[], dict[str, Any]], report: SetReport, largest_id: int, prompt_tokens: int
) -> str:
    """The text of PREFIX.set.json for a set of this tokenizer's ids, none above `largest_id`: the hash and number of the tokens,
    and what the set holds. chat_format: what is told of its chats, when all are written.
    """
    tokens = sorted((number, token.encode()) for token, number in _vocabulary(tokenizer, largest_id).items())
    listed = b"".join(b"%d %d %s\n" % (number, len(token), token) for number, token in tokens)
    fingerprint = {
        "format": 1,
        "tokenizer": str(tokenizer.name_or_path) or "without a name",  # "made with the tokenizer ..."
        "tokenizer_sha256": "",  # of a file; compared first, and then the tokens
        "vocabulary_sha256": hashlib.sha256(listed).hexdigest(),
        "vocabulary": len(tokens),
        "end_of_text_appended": False,
        "documents": report.documents,
        "tokens": report.tokens,
        "prompt_tokens": prompt_tokens,
        "largest_id": largest_id,
        **chat_format(),
    }
    return json.dumps(fingerprint, indent=1) + "\n"


def _vocabulary(tokenizer: PreTrainedTokenizerBase, largest_id: int) -> dict[str, int]:
    """Of its tokenizer.json, as of `trireme tokenize`: what transformers or a script added since (padding) is in no model's file.

    Where it comes from no such file, or an id of the set is another token there: all that it has, without tokens that were added
    behind its model's and behind the set's.
    """
    from tokenizers import Tokenizer

    last = max([largest_id, *tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values()])
    now = {token: number for token, number in tokenizer.get_vocab().items() if number <= last}
    file = _tokenizer_json(str(tokenizer.name_or_path))
    if file is None:
        return now
    try:
        listed = Tokenizer.from_file(file).get_vocab()
    except Exception:  # tokenizers raises Exception itself; the file was changed since
        return now
    used = [{token: number for token, number in tokens.items() if number <= largest_id} for tokens in (listed, now)]
    return listed if used[0] == used[1] else now


def _tokenizer_json(name: str) -> Optional[str]:
    """In the folder of that name, or in the Hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    if name and os.path.isfile(file := os.path.join(name, "tokenizer.json")):
        return file
    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
    except ValueError:  # nothing of the Hub has such a name
        return None
    return cached if isinstance(cached, str) else None
