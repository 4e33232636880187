"""The versions of transformers whose inner workings are read here; others are refused."""

from __future__ import annotations

from .errors import ConfigError

TESTED_TRANSFORMERS = ("5.23.", "5.24.")


def refuse_untested_transformers(asked_by: str, why: str) -> None:
    """asked_by, why: of the message; why says what of these versions is counted on."""
    import transformers

    if not transformers.__version__.startswith(TESTED_TRANSFORMERS):
        expected = " or ".join(f"{version}x" for version in TESTED_TRANSFORMERS)
        raise ConfigError(f"{asked_by}: got transformers {transformers.__version__}, expected {expected}, {why}")
