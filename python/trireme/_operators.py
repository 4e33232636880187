"""Loads the C++ operators (python/operators) into torch.ops.trireme, and refuses a torch that they were not built for."""

import os
import pathlib

import torch

from .errors import ConfigError


def _load() -> None:
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


_load()
forward = torch.ops.trireme.ulysses_forward
backward = torch.ops.trireme.ulysses_backward
token_spans = torch.ops.trireme.token_spans
delta_rule_forward = torch.ops.trireme.delta_rule_forward
delta_rule_backward = torch.ops.trireme.delta_rule_backward
causal_convolution_forward = torch.ops.trireme.causal_convolution_forward
causal_convolution_backward = torch.ops.trireme.causal_convolution_backward
