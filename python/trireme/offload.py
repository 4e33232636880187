"""What layers keep for backward, outside the accelerator's memory between forward and backward.

    forward of layer i:   hidden [B, s, H]  --side stream-->  pinned host memory
    backward of layer i:  host memory  --side stream-->  hidden, while the one of layer i - 1 is already on its way

With gradient checkpointing what a layer keeps is its input; without it, all that its operations save.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Callable, Iterator, Optional, Sequence

import torch
import torch.utils.checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.multiprocessing.reductions import StorageWeakRef

from .errors import ConfigError
from .model_in_use import replace_forward
from .pinned_host import PinnedHost

# Takes a contiguous tensor that may be freed afterwards; what it returns gives it back, any number of times. Where that has a
# method begin(), it is called while the tensor kept after it is used.
Store = Callable[[torch.Tensor], Callable[[], torch.Tensor]]


@contextlib.contextmanager
def offload_activations(
    model: torch.nn.Module,
    *,
    layers: Optional[Sequence[torch.nn.Module]] = None,
    min_bytes: int = 1 << 20,
    store: Optional[Store] = None,
) -> Iterator[torch.nn.Module]:
    """``with trireme.offload_activations(model): ...``: what the layers save for backward waits in pinned host memory.

    model: of transformers, whose layers are found (those that it can checkpoint, in torch's CheckpointWrapper or not), or any beside
        ``layers``, its modules. Turn gradient checkpointing on, so that a layer saves its input alone.
    layers: modules whose forward calls torch.utils.checkpoint, where they are checkpointed: it keeps the input of what it is given.
    min_bytes: smaller tensors stay. Parameters, views of them, and what is no floating tensor stay.
    store: where to put tensors in place of host memory, called with each one, contiguous; it returns a function that gives
        the tensor back on its device. Without one the model must be on a CUDA device; on a CPU it is refused.

    Gradients are the same to the bit: tensors come back with their values and strides. A tensor that is saved twice is
    kept once. Forward belongs into the block, backward may come later. Undone on exit.
    Raises ConfigError for layers that run within torch.utils.checkpoint (with use_reentrant=True, in backward), and where pinned
    host memory ends.
    """
    layers = list(layers) if layers is not None else _layers_of(model)
    devices = {parameter.device.type for layer in layers for parameter in layer.parameters()}
    if store is None and devices != {"cuda"}:
        raise ConfigError(
            f"trireme.offload_activations: the layers are on {sorted(devices)}, expected cuda: on a CPU its memory is the host's "
            "already. Give a store to keep tensors elsewhere"
        )
    offload = _Offload(store or PinnedHost(), min_bytes)
    with contextlib.ExitStack() as undo:
        for layer in layers:
            replace_forward(layer, offload.around(layer, layer.forward), undo)
        yield model


def _layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        GradientCheckpointingLayer = ()
    found: list = []
    for module in model.modules():
        if isinstance(module, (GradientCheckpointingLayer, CheckpointWrapper)) and not any(module in set(outer.modules()) for outer in found):
            found.append(module)
    if not found:
        raise ConfigError(
            f"trireme.offload_activations: found no layer in {type(model).__name__} that transformers can checkpoint: give layers"
        )
    return found


class _Kept:
    """One tensor elsewhere. Its weak reference holds the storage's identity, so that no other storage can take it."""

    def __init__(self, tensor: torch.Tensor, store: Store, earlier: Optional[_Kept]):
        self.size, self.stride = tensor.size(), tensor.stride()
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.load = store(_dense(tensor.detach()).contiguous())
        self.earlier = None if earlier is None else weakref.ref(earlier)

    def tensor(self) -> torch.Tensor:
        """With the values and strides of the one that was kept."""
        earlier = self.earlier and self.earlier()
        back = self.load()
        if earlier is not None and hasattr(earlier.load, "begin"):
            earlier.load.begin()  # backward wants it next
        if back.size() == self.size and back.stride() == self.stride:
            return back
        laid_out = torch.empty_strided(self.size, self.stride, dtype=back.dtype, device=back.device)
        _dense(laid_out).copy_(back)
        return laid_out


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """One of each element: expanded dimensions have one entry."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two of its elements share memory, beside expanded ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride > 0:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


class _Offload:
    def __init__(self, store: Store, min_bytes: int):
        self.store = store
        self.min_bytes = min_bytes
        self._kept: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self._last: Optional[weakref.ref] = None

    def around(self, layer, whole):
        def forward(*arguments, **keywords):
            if _within_checkpoint():
                raise ConfigError(
                    f"trireme.offload_activations: {type(layer).__name__} runs within torch.utils.checkpoint, which keeps the layer's input out of "
                    "reach: it is refused; give layers=[the module whose forward calls checkpoint], or let transformers checkpoint the layers"
                )
            stay = {parameter.untyped_storage()._cdata for parameter in layer.parameters() if not hasattr(parameter, "device_mesh")}
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: self.pack(tensor, stay), self.unpack):
                return whole(*arguments, **keywords)

        return forward

    def pack(self, tensor: torch.Tensor, stay: set[int]):
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.is_floating_point()
        if not plain or tensor.numel() * tensor.element_size() < self.min_bytes or _overlaps(tensor):
            return tensor
        storage = tensor.untyped_storage()._cdata
        if storage in stay:
            return tensor
        key = (storage, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype, tensor._version)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(tensor, self.store, self._last and self._last())
            self._last = weakref.ref(kept)
        return kept

    @staticmethod
    def unpack(packed):
        return packed.tensor() if isinstance(packed, _Kept) else packed


def _within_checkpoint() -> bool:
    """Or in backward, where a checkpoint computes again; before that, one with use_reentrant=True looks like an evaluation."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return torch._C._current_graph_task_id() != -1 or hooks is not None and hooks[0].__module__ == torch.utils.checkpoint.__name__
