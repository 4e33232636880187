"""What the helpers of the package do alike with a model that is not theirs: find it, run it to look at it, stand in its forward."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Callable, Iterator, Optional

import torch
from torch.distributed.fsdp import FSDPModule

from .errors import ConfigError
from .rotary import remembered_lengths


def pretrained_models_in(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """By name, an outer one before those within it; none where nobody imported transformers."""
    transformers = sys.modules.get("transformers")
    return {} if transformers is None else {name: module for name, module in model.named_modules() if isinstance(module, transformers.PreTrainedModel)}


def pretrained_model_in(model: torch.nn.Module, asked_by: str) -> torch.nn.Module:
    """The PreTrainedModel that ``model`` is, or holds as its wrappers do (PEFT, DDP); beside a frozen one (a teacher) the one that is trained.

    ConfigError in the name of ``asked_by``.
    """
    found = list(pretrained_models_in(model).values())
    if not found:
        raise ConfigError(f"{asked_by}: got {type(model).__name__}, which holds no PreTrainedModel")
    return next((module for module in found if any(parameter.requires_grad for parameter in module.parameters())), found[0])


def called_for(model: torch.nn.Module, target: torch.nn.Module) -> torch.nn.Module:
    """What of ``model`` to call, that ``target`` may run: FSDP's root gathers parameters that are its own; other wrappers need not be called."""
    roots = (module for module in model.modules() if isinstance(module, FSDPModule) and any(inner is target for inner in module.modules()))
    return next(roots, target)


def router_coefficient(model: torch.nn.Module, of_trls_head: bool = False) -> float:
    """By which a router's loss goes into the model's: a forward of its own takes its attribute, where it has one, and TRL's head the config."""
    config = model.config.get_text_config()
    for holder in (config,) if of_trls_head else (model, config):
        for name in ("router_aux_loss_coef", "aux_loss_coef"):
            if hasattr(holder, name):
                return getattr(holder, name)
    raise ConfigError(
        f"trireme: {type(model).__name__} has a router's loss and no router_aux_loss_coef: leave the labels out and take the loss of the logits"
    )


def compiled_around(model: torch.nn.Module, target: torch.nn.Module) -> bool:
    """Whether torch.compile compiles ``target``, or something of ``model`` that holds it; not its layers alone."""
    compiled = (m for m in model.modules() if m._compiled_call_impl is not None or type(m).__name__ == "OptimizedModule")
    return any(inner is target for module in compiled for inner in module.modules())


def vocabulary_of(model: torch.nn.Module) -> Optional[int]:
    """Rows of the table of token embeddings, which PEFT may have wrapped; None where the model has no one table."""
    embed = model.get_input_embeddings()
    rows = {module.num_embeddings for module in embed.modules() if isinstance(module, torch.nn.Embedding)} if embed is not None else set()
    return rows.pop() if len(rows) == 1 else None


def takes_use_cache(model: torch.nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return "use_cache" in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def few_ids(vocabulary: int, tokens: int) -> torch.Tensor:
    """[2, tokens], always the same, to look at a model with."""
    # Not on the default device, which may be a GPU: the generator is the CPU's.
    return torch.randint(1, vocabulary, (2, tokens), generator=torch.Generator().manual_seed(0), device="cpu")


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """In evaluation mode, without gradients and uncompiled; each module then has its own mode again, and rotary embeddings their lengths."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), remembered_lengths(model):
            yield
    finally:
        for module in training:
            module.training = True


def replace_forward(module: torch.nn.Module, forward: Callable, undo: contextlib.ExitStack) -> None:
    """Until ``undo`` closes. A forward that others had put there (Accelerate, PEFT) is put back."""
    earlier = module.__dict__.get("forward")

    def put_back():
        del module.forward
        if earlier is not None:
            module.forward = earlier

    undo.callback(put_back)
    module.forward = forward
