"""What joins Trireme to Accelerate and the Trainer; each name is imported when it is first asked for."""

import importlib

_MODULES = {"ParallelismConfig": "parallelism_config", "with_sequence_parallel": "trainer"}
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
