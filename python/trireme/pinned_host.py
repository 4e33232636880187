"""Tensors in pinned host memory, copied beside the computation: where offload_activations keeps them on a GPU.

    tensor  --side stream-->  pieces of pinned memory, powers of two  --side stream-->  tensor, on its device again
"""

from __future__ import annotations

import weakref
from typing import Optional

import torch

from .errors import ConfigError

SMALLEST_PIECE_BYTES = 1 << 20


class PinnedHost:
    """A Store of offload.py, whose copies are made on a stream of their own."""

    def __init__(self):
        self.streams: dict[torch.device, torch.cuda.Stream] = {}
        self._kept: weakref.WeakSet[_OnHost] = weakref.WeakSet()

    def __call__(self, tensor: torch.Tensor) -> _OnHost:
        if tensor.device not in self.streams:
            self.streams[tensor.device] = torch.cuda.Stream(tensor.device)
        kept = _OnHost(tensor, self._pieces(tensor), self.streams[tensor.device])
        self._kept.add(kept)
        return kept

    def _pieces(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        try:
            return [torch.empty(size, dtype=tensor.dtype, pin_memory=True) for size in piece_sizes(tensor.numel(), tensor.element_size())]
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            # CUDA says this of the host's memory too, and a reader would look at the GPU's.
            held_bytes = sum(kept.pinned_bytes for kept in self._kept)
            raise ConfigError(
                f"trireme.offload_activations: pinned host memory is exhausted, not the GPU's: got none for {tensor.numel() * tensor.element_size()} bytes "
                f"of {tuple(tensor.shape)}, beside {held_bytes} bytes of activations that this process keeps in it ({held_bytes / (1 << 30):.1f} GiB; each process "
                "on this host has its own). Offload less (layers=, min_bytes=), let more ranks share a sample, run fewer processes on this host, or give a "
                "store= that keeps tensors in memory that is not pinned"
            ) from error


def piece_sizes(elements: int, element_bytes: int) -> list[int]:
    """Elements of the pieces of a tensor in pinned memory, of which torch rounds each allocation up to a power of two: pieces are
    powers of two themselves, so that less than SMALLEST_PIECE_BYTES is lost in place of up to half."""
    sizes, left_bytes = [], elements * element_bytes
    while left_bytes > 0:
        piece_bytes = 1 << (left_bytes.bit_length() - 1)
        if piece_bytes < SMALLEST_PIECE_BYTES:
            piece_bytes = left_bytes
        sizes.append(piece_bytes // element_bytes)
        left_bytes -= piece_bytes
    return sizes


class _OnHost:
    def __init__(self, tensor: torch.Tensor, pieces: list[torch.Tensor], stream: torch.cuda.Stream):
        self.stream, self.device, self.shape, self.dtype = stream, tensor.device, tensor.shape, tensor.dtype
        self.pieces, self.sizes = pieces, [piece.numel() for piece in pieces]
        self.pinned_bytes = tensor.numel() * tensor.element_size()
        self._coming: Optional[torch.Tensor] = None
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            for piece, of_tensor in zip(self.pieces, tensor.view(-1).split(self.sizes)):
                piece.copy_(of_tensor, non_blocking=True)
        tensor.record_stream(stream)  # its memory is used again only after the copy

    def begin(self) -> None:
        """Starts the copy back; it follows the one to the host in the stream."""
        if self._coming is None:
            self._coming = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                for of_tensor, piece in zip(self._coming.view(-1).split(self.sizes), self.pieces):
                    of_tensor.copy_(piece, non_blocking=True)
            self._coming.record_stream(self.stream)

    def __call__(self) -> torch.Tensor:
        self.begin()
        tensor, self._coming = self._coming, None
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return tensor
