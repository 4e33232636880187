"""Rotary embeddings whose frequencies depend on the longest position (dynamic NTK, longrope) see that of the whole batch.

    position_ids_Bs of this rank, with the longest of all ranks as one more token  ->  cos_BtD, sin_BtD without it

Transformers takes the longest of the position_ids that it is given: those of a shard would give each rank others.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

import torch


def see_longest_position(model: torch.nn.Module, longest: Callable[[], int], undo: contextlib.ExitStack) -> None:
    """While `undo` is open. longest(): of the batch in this forward pass."""

    @torch._disable_dynamo
    def lengthen(_module: torch.nn.Module, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
        named = "position_ids" in keywords
        position_ids = keywords["position_ids"] if named else arguments[1]
        position_ids = torch.nn.functional.pad(position_ids, (0, 1), value=longest())
        if named:
            return arguments, {**keywords, "position_ids": position_ids}
        return (arguments[0], position_ids, *arguments[2:]), keywords

    @torch._disable_dynamo
    def shorten(_module: torch.nn.Module, _arguments: tuple, output: Any) -> tuple:
        return tuple(part[..., :-1, :] for part in output)

    for module in model.modules():
        if depends_on_length(getattr(module, "rope_type", None)):
            undo.callback(module.register_forward_pre_hook(lengthen, with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(shorten).remove)


@contextlib.contextmanager
def remembered_lengths(model: torch.nn.Module) -> Iterator[None]:
    """What rotary embeddings keep of the longest call so far is afterwards what it was: a short call resets dynamic NTK's."""
    kept = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules() if depends_on_length(getattr(module, "rope_type", None))]
    try:
        yield
    finally:
        for module, attributes, buffers in kept:
            for now, before in ((vars(module), attributes), (module._buffers, buffers)):
                now.clear()
                now.update(before)


def reach_of_positions(config: Any) -> Optional[int]:
    """How many positions a text model was made for, its stretched rotary embedding included; None where its configuration does not say.

    A factor is of the original positions. `linear` may leave these out, and then some files mean max_position_embeddings and some do not.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    reach = [positions]
    for kind in kinds:
        original = kind.get("original_max_position_embeddings")
        if original is None and kind.get("rope_type") == "linear":
            return None
        reach.append(int((original or positions) * (kind.get("factor") or 1)))
    return max(reach)


def depends_on_length(rope_type: Any) -> bool:
    """rope_type: of a rotary embedding of transformers, or of each kind of its layers."""
    if isinstance(rope_type, dict):
        return any(map(depends_on_length, rope_type.values()))
    return isinstance(rope_type, str) and ("dynamic" in rope_type or rope_type == "longrope")
