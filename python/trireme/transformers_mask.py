"""What a model of transformers wants seen, read from the mask function that it builds, without building the mask.

Transformers composes a mask of small functions over (query, key) indices. Those that Trireme's attention has as block
ranges are known here by name; any other is refused by its name, so that no model attends to other keys than its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, NoReturn, Optional

from .errors import ConfigError


class NoSuchMask(ConfigError, AttributeError):
    """Of what is asked of a mask that is no tensor; hasattr answers as ever."""


@dataclasses.dataclass(frozen=True)
class SeenKeys:
    """The mask of some layers for one forward pass; it travels through the layers as their `attention_mask`."""

    causal: bool
    window: Optional[int]  # as in ulysses_attention
    sequence: Any  # sequence_of_call.SequenceOfCall
    model: str  # the name of its class

    def __getitem__(self, part):
        # Gemma 4 slices the mask by logits_to_keep before the layers that share keys; 0 keeps all.
        if isinstance(part, tuple) and all(isinstance(index, slice) and index in (slice(None), slice(0, None)) for index in part):
            return self
        raise ConfigError(
            f"trireme.parallelize: {self.model} reads its mask outside its attention (an indexer that chooses keys, as DeepSeek-V3.2's): it is refused"
        )

    def __getattr__(self, name):
        self._refuse(name)

    def __add__(self, _scores):
        self._refuse("a sum with scores")

    __radd__ = __add__

    def _refuse(self, asked: str) -> NoReturn:
        raise NoSuchMask(
            f"trireme.parallelize: {self.__dict__.get('model')} asks its mask for {asked}: its attention does not go through transformers' "
            "AttentionInterface, so it is refused"
        )


# By qualified name in transformers.masking_utils.
_CAUSAL = "causal_mask_function"
_FULL = "bidirectional_mask_function"
_WINDOW = "sliding_window_overlay.<locals>.inner_mask"
_FULL_WINDOW = "sliding_window_bidirectional_overlay.<locals>.inner_mask"
_BOTH = "and_masks.<locals>.and_mask"
# Documents of this rank's shard alone: Trireme knows those of the whole sample.
_OF_SHARD = "packed_sequence_mask_function.<locals>.inner_mask"
_IN_DOCUMENT = "remap_positions_for_packed_sequence.<locals>.inner_mask"


def read_mask_function(mask_function: Callable) -> tuple[bool, Optional[int]]:
    """(causal, window) of a mask function; ConfigError names a part that is not known."""
    causal, full, window = False, False, None
    for name, values in _parts(mask_function):
        if name == _CAUSAL:
            causal = True
        elif name == _FULL:
            full = True
        elif name == _WINDOW:
            window = values["sliding_window"]
        elif name == _FULL_WINDOW:
            window, full = values["sliding_window"] + 1, True  # theirs is the largest distance
        elif name != _OF_SHARD:
            raise ConfigError(
                f"trireme.parallelize: the model's mask has a part that Trireme does not know, {name} (chunks, blocks of "
                "images, custom overlays): it is refused; images of such a model are, and for text alone leave token_type_ids and mm_token_type_ids out"
            )
    if causal == full:
        raise ConfigError("trireme.parallelize: the model's mask is neither causal nor full attention: it is refused")
    return causal, window


def _parts(function: Callable) -> Iterator[tuple[str, dict]]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if getattr(function, "__module__", "") != "transformers.masking_utils":
        yield f"{getattr(function, '__module__', '')}.{name}", {}
        return
    cells = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    if name == _BOTH:
        for part in cells["mask_functions"]:
            yield from _parts(part)
    elif name == _IN_DOCUMENT:
        yield from _parts(cells["mask_function"])
    else:
        yield name, cells
