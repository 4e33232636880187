"""Which tokenizer made a set: PREFIX.set.json, as `trireme tokenize` writes it and `trireme train` compares it with the model's.

Tokens count, and not how a file writes them, so a tokenizer needs no file here.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from .token_set import SetReport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def set_fingerprint(tokenizer: PreTrainedTokenizerBase, report: SetReport, largest_id: int, prompt_tokens: int) -> str:
    """The text of PREFIX.set.json for a set of this tokenizer's ids up to `largest_id`: its tokens' hash and number, and what
    the set holds. Tokens behind those may be ones that transformers adds (padding), which no tokenizer.json has.
    """
    tokens = sorted((number, token.encode()) for token, number in tokenizer.get_vocab().items() if number <= largest_id)
    listed = b"".join(b"%d %d %s\n" % (number, len(token), token) for number, token in tokens)
    fingerprint = {
        "format": 1,
        "tokenizer": str(tokenizer.name_or_path),
        "tokenizer_sha256": "",  # of a file; compared first, and then the tokens
        "vocabulary_sha256": hashlib.sha256(listed).hexdigest(),
        "vocabulary": len(tokens),
        "end_of_text_appended": False,
        "documents": report.documents,
        "tokens": report.tokens,
        "prompt_tokens": prompt_tokens,
    }
    return json.dumps(fingerprint, indent=1) + "\n"
