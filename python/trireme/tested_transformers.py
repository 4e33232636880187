"""The version of transformers whose inner workings are read here; others are refused."""

from __future__ import annotations

from .errors import ConfigError

TESTED_TRANSFORMERS = "5.23."


def refuse_untested_transformers(asked_by: str, why: str) -> None:
    """asked_by, why: of the message; why says what of this version is counted on."""
    import transformers

    if not transformers.__version__.startswith(TESTED_TRANSFORMERS):
        raise ConfigError(f"{asked_by}: got transformers {transformers.__version__}, expected {TESTED_TRANSFORMERS}x, {why}")
