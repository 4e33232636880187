"""Which tokenizer made a set: PREFIX.set.json, as `trireme tokenize` writes it and `trireme train` compares it with the model's.

Tokens count, and not how a file writes them, so a tokenizer needs no file here.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Union

from .token_set import SetReport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def write_set_fingerprint(prefix: Union[str, os.PathLike], tokenizer: PreTrainedTokenizerBase, report: SetReport) -> None:
    tokens = sorted((number, token.encode()) for token, number in tokenizer.get_vocab().items())
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
    }
    name = os.fspath(prefix)
    name = name[:-4] if name.endswith((".bin", ".idx")) else name
    partial = f"{name}.set.json.partial-{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(fingerprint, indent=1) + "\n")
    os.replace(partial, name + ".set.json")
