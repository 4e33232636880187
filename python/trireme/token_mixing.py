"""Finds what mixes tokens outside attention: convolutions over time, recurrences, statistics over a batch.

Such a model cannot be cut along its sequence by attention alone. It is found by running it: with attention replaced by
a function of each token alone, a model whose other parts work token by token gives every token an output that depends
on that token only. So it runs twice on a short batch that differs in one token; where another token's output
changes, something else mixes tokens, and the first module that shows it is named.
"""

from __future__ import annotations

import contextlib
import inspect

import torch

from .errors import ConfigError
from .model_in_use import evaluating, few_ids

TOKENS, CHANGED = 24, 5  # the changed token of the first of two samples


def refuse_token_mixing(model: torch.nn.Module, vocabulary: int, run) -> None:
    """run(ids [2, TOKENS]): a forward pass with attention that mixes no tokens. Raises ConfigError."""
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # mixes in training alone; it runs in evaluation below
            raise _refusal(name, module)
    device = next(model.parameters()).device
    ids = few_ids(vocabulary, TOKENS)
    changed = ids.clone()
    changed[0, CHANGED] = ids[0, CHANGED] % (vocabulary - 1) + 1
    masked = getattr(model.config, "mask_token_id", None)  # a model may count these in a sample (ESM-2)
    if masked is not None and masked != ids[0, CHANGED] and 0 <= masked < vocabulary:
        changed[0, CHANGED] = masked
    with evaluating(model):
        first, second = _outputs(names, run, ids.to(device)), _outputs(names, run, changed.to(device))
    if len(first) != len(second):
        raise ConfigError("trireme.parallelize: the modules that run depend on the tokens; it cannot be seen whether they mix them")
    for (module, before), (_, after) in zip(first, second):
        if before.shape != after.shape or not _changes_elsewhere(before, after):
            continue
        raise _refusal(names[module], module)


def refuse_own_positions(model: torch.nn.Module, vocabulary: int, run) -> bool:
    """run as above, also with position_ids and attention_mask. Halves of the samples, with the positions that shards have, must give
    what the samples give: a model that counts from another number than 0 (RoBERTa), counts by itself, or scales by the length does not.
    Returns whether it counts otherwise beside padding on the left (OPT).

    Refuses outputs that are not of each token too (scores of a sample).
    """
    device = next(model.parameters()).device
    ids = few_ids(vocabulary, TOKENS).to(device)
    mask = torch.ones_like(ids)
    mask[0, :CHANGED] = 0
    with evaluating(model):
        output = run(ids)
        halves = ids.view(4, -1)  # as many rows of each product as before, so that its rounding is the same
        counted = run(halves, position_ids=torch.arange(TOKENS, device=device).expand(2, TOKENS).reshape(halves.shape))
        padded = run(ids, attention_mask=mask) if "attention_mask" in inspect.signature(model.forward).parameters else output
    for tokens, found in ((ids, output), (halves, counted)):  # of two lengths: a sample may have as many scores as one of them
        for name, value in found.items():
            if torch.is_tensor(value) and value.dim() and value.is_floating_point() and value.shape[:2] != tokens.shape and len(value) != tokens.numel():
                raise ConfigError(
                    f"trireme.parallelize: {type(model).__name__} gives {name} of {tuple(value.shape)} for {tuple(tokens.shape)} tokens, so not a value "
                    "for each token: what it takes of one token, the last or the first, would be of a shard's: it is refused"
                )
    # The first that is not a router's loss.
    output, counted, padded = (next(v for v in found.values() if torch.is_tensor(v) and v.dim()) for found in (output, counted, padded))
    if not torch.allclose(output, counted.reshape(output.shape), rtol=1e-3, atol=1e-5):
        raise ConfigError(
            f"trireme.parallelize: {type(model).__name__} gives the halves of a sample, with their position_ids, other values than the sample: it counts "
            "positions in a way of its own, not 0, 1, 2, ... as the position_ids do, or its values depend on how many tokens a call has. It is refused"
        )
    valid = mask.bool() if output.shape[:2] == mask.shape else mask.flatten().bool()
    return not torch.allclose(output[valid], padded[valid], rtol=1e-3, atol=1e-5)


def _refusal(name: str, module: torch.nn.Module) -> ConfigError:
    return ConfigError(
        f"trireme.parallelize: {name or 'the model'} ({type(module).__name__}) mixes tokens outside attention (a recurrence, a "
        "convolution over time, statistics of a batch, or attention of its own): such a model cannot be shared along its "
        "sequence, and is refused"
    )


def _outputs(names, run, ids):
    """(module, [2, TOKENS, -1]) of every output that has a row for each token, in the order in which modules end."""
    found = []
    within_experts = {inner for module in names if _holds_experts(module) for inner in module.modules() if inner is not module}

    def keep(module, _arguments, output):
        tensors = [output] if torch.is_tensor(output) else list(output.values()) if isinstance(output, dict) else output
        for tensor in tensors if isinstance(tensors, (list, tuple)) else []:
            if torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.dim() >= 2:
                if tensor.shape[:2] == ids.shape:
                    found.append((module, tensor.flatten(2) if tensor.dim() > 2 else tensor[..., None]))
                elif tensor.shape[0] == ids.numel() and module not in within_experts:
                    found.append((module, tensor.reshape(*ids.shape, -1)))

    with contextlib.ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_hook(keep).remove)
        run(ids)
    return found


def _holds_experts(module: torch.nn.Module) -> bool:
    """Their matrices in one tensor: what runs within sees rows sorted by expert, as many as tokens where each has one expert."""
    return any(parameter.dim() > 2 for parameter in module.parameters(recurse=False))


def _changes_elsewhere(before: torch.Tensor, after: torch.Tensor) -> bool:
    change = (after - before).abs().float()
    change[0, CHANGED] = 0
    # Rounding may differ where a module sorts tokens, as experts do.
    rounding = 1e-4 if before.dtype in (torch.float32, torch.float64) else 2e-2
    return not bool(change.max() <= rounding * before.abs().max())
