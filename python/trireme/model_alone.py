"""The half of verify that rank 0 runs alone: the model as transformers has it, its loss and gradients beside those over the ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, Iterator, Sequence

import torch
import torch.distributed as dist

from .model_in_use import pretrained_model_in, takes_use_cache
from .sequence_group import SequenceGroup


def beside_the_model_alone(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    parameters: Sequence[torch.nn.Parameter],
    shared: SequenceGroup,
    gradients: list[torch.Tensor],
) -> list[float]:
    """[norm, reference loss, reference norm, error, largest, error, largest, ...] with two of each gradient. Collective."""
    found = torch.zeros(4 + 2 * len(gradients), dtype=torch.float64, device=gradients[0].device)
    failure = None
    if shared.rank == 0:
        try:
            with _without_cache(pretrained_model_in(model, "trireme.verify")):
                loss = model(**inputs).loss
            reference = gradients_of(loss, parameters)
            rows = _errors(gradients, reference, torch.finfo(dtype_of(parameters)).eps)
            values = [0.0, _norm(gradients), loss.item(), _norm(reference), *itertools.chain(*rows)]
            found.copy_(torch.tensor(values, dtype=torch.float64, device=found.device))
        except Exception as error:  # the others wait for a word of it
            failure, found[0] = error, 1
    if shared.size > 1:
        dist.broadcast(found, group=shared.process_group, group_src=0)
    if failure is not None:
        raise failure
    failed, *values = found.tolist()
    if failed:
        raise RuntimeError("trireme.verify: rank 0 could not run the model alone; its error says why")
    return values


def gradients_of(loss: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    # Not by backward(): the user's gradients stay, and hooks that step an optimizer do not run.
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


@contextlib.contextmanager
def _without_cache(target: torch.nn.Module) -> Iterator[None]:
    """Beside a cache transformers does not part packed documents. Not every wrapper hands use_cache on by name."""

    def before(_module, arguments, keywords):
        return arguments, {**keywords, "use_cache": False}

    hooks = [target.register_forward_pre_hook(before, with_kwargs=True)] if takes_use_cache(target) else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _errors(gradients: list[torch.Tensor], references: list[torch.Tensor], spacing: float) -> list[tuple[float, float]]:
    """(error, largest) of each. A bias whose gradient is zero but for rounding (a key's) is compared with the largest of the model."""
    largest = [reference.abs().max().item() for reference in references]
    errors = []
    for gradient, reference, own in zip(gradients, references, largest):
        if reference.dim() == 1 and max(own, gradient.abs().max().item()) <= spacing * max(largest):
            own = max(largest)
        difference = (gradient - reference).abs().max().item()
        errors.append((0.0 if difference == 0 else difference / own if own and math.isfinite(difference) else math.inf, own))
    return errors


def _norm(gradients: list[torch.Tensor]) -> float:
    return math.sqrt(sum(torch.linalg.vector_norm(gradient, dtype=torch.float64).item() ** 2 for gradient in gradients))


def dtype_of(parameters: Sequence[torch.nn.Parameter]) -> torch.dtype:
    """In which the model computes: autocast's, or the coarsest of its weights."""
    kind = parameters[0].device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return max((parameter.dtype for parameter in parameters), key=lambda dtype: torch.finfo(dtype).eps)
