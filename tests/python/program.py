"""The program `trireme`, and the small model that it writes."""

import os
import subprocess

BINARY = os.environ["TRIREME_BINARY"]
END_OF_TEXT = 256  # of the byte-level tokenizer of make_tiny: a token a byte before it


def run(folder, *words, code=0):
    """What it says on stdout, or of a refusal on stderr."""
    done = subprocess.run([BINARY, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def make_tiny(folder, *flags):
    run(".", "init", "--preset", "tiny", "--out", folder, *flags)
    return folder
