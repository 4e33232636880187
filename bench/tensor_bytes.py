"""Bytes of tensors that operators of torch make: alive at once, and of the largest; the same numbers on every machine."""
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """Counts the tensors that are made while it lasts; what was there before is not counted."""

    def __init__(self):
        super().__init__()
        self.alive, self.most_alive, self.largest = 0, 0, 0
        self._storages = {}
        self._before = set()

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        given = [value for value in tree_leaves((arguments, keywords)) if isinstance(value, torch.Tensor)]
        self._before |= {tensor.untyped_storage()._cdata for tensor in given} - self._storages.keys()
        output = operator(*arguments, **(keywords or {}))
        for tensor in tree_leaves(output):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) and not tensor.is_meta else None
            if storage is None or storage._cdata in self._storages or storage._cdata in self._before:
                continue
            self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self.alive += storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())
        self.most_alive = max(self.most_alive, self.alive)
        for address, (reference, size) in list(self._storages.items()):
            if reference.expired():
                self.alive -= size
                del self._storages[address]
        return output
