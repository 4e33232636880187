"""The planner from Python: `trireme plan --json`.

options --words--> trireme plan --json  --> dict (docs/assistants.md)

The program owns its options and refuses what it does not know; nothing of them is repeated here.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Union

from .engine import _words, engine_binary
from .errors import REQUEST_AT_FAULT, ConfigError, RunFailed

FITS, NOTHING_FITS = 0, 1


def plan(*, binary: Union[str, os.PathLike, None] = None, **options: Any) -> Any:
    """``trireme.plan(model="llama3-8b", gpus=8, gpu="h100-80gb", max_seq_length="128k")["best"]["time"]["tokens_per_second"]``.

    options: those of `trireme plan` under their own names (docs/plan.md), written as those of :func:`trireme.train` are.
    binary: the program; see :func:`engine_binary`.

    Returns what `trireme plan --json` prints, whose keys docs/assistants.md explains: a dict, with `stages` a list of them. A
    plan that does not fit is returned too; its "fits" is False. Raises ConfigError with the program's words where it refuses
    the request, and RunFailed for another end.
    """
    words = [engine_binary(binary), "plan", *_words({**options, "json": True})]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode in (FITS, NOTHING_FITS):
        return json.loads(done.stdout)
    if done.returncode == REQUEST_AT_FAULT:
        raise ConfigError((done.stderr.partition("ConfigError: ")[2] or done.stderr).strip())
    how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with code {done.returncode}"
    raise RunFailed(f"trireme plan {how}. Its words:\n{done.stderr}", done.returncode, done.stderr.splitlines())
