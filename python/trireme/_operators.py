"""The C++ operators (python/operators) of torch.ops.trireme, loaded when the first of them is asked for: sets of tokens, plans and runs
of the engine need none. A torch that they were not built for is refused.
"""

import functools
import os
import pathlib

import torch

from .errors import ConfigError

_OPERATORS = {
    "ulysses_forward", "token_spans", "delta_rule_forward", "delta_rule_backward", "causal_convolution_forward", "causal_convolution_backward",
}  # fmt: skip


@functools.cache
def load() -> None:
    # TRIREME_OPERATORS: the library of a build by cmake, for tests of a source tree.
    library = pathlib.Path(os.environ.get("TRIREME_OPERATORS", pathlib.Path(__file__).parent / "libtrireme_operators.so"))
    if not library.is_file():
        raise ConfigError(
            f"trireme: its operators are not at {library}; install the package (pip install --no-build-isolation . in "
            "the repository), or let TRIREME_OPERATORS name the library of a build"
        )
    built_for = library.with_name("torch_version.txt").read_text().strip()
    if torch.__version__.split("+")[0] != built_for.split("+")[0]:
        raise ConfigError(
            f"trireme: built for torch {built_for}, got torch {torch.__version__}; C++ operators fit only the torch that "
            "they were built beside: install that torch, or install trireme again"
        )
    torch.ops.load_library(library)
    from . import attention_formulas  # noqa: F401


def __getattr__(name: str):
    if name not in _OPERATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load()
    return globals().setdefault(name, getattr(torch.ops.trireme, name))
