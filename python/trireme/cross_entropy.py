"""Cross entropy of logits, tile by tile of tokens: nothing of the logits' size is made but their gradient.

    logits_NV, targets_N  --a tile of tokens in fp32-->  sum of losses                  (forward; keeps the logits as they are)
                          --the same tiles again-->      d_logits_NV in logits' dtype   (backward)

PyTorch's own keeps a log-softmax as large as the logits, and where these are bf16, an fp32 copy too.
"""

from __future__ import annotations

import torch

from .once_differentiable import once_differentiable

TILE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}  # in fp32 4 MiB, near a processor's cache; 256 MiB, a few launches


@torch._disable_dynamo  # Dynamo lost what backward writes into slices, and the gradient was zero
def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """The sum over valid targets, a scalar in fp32 (fp64 for fp64). Not collective.

    logits: [..., V] in any floating dtype; targets: [...]. Softmax and sum are in fp32, as of ``logits.float()``.
    """
    if torch.overrides.has_torch_function_unary(logits):  # those of fused_loss know their sum
        flat = logits.flatten(0, -2), targets.flatten()
        return torch.nn.functional.cross_entropy(*flat, ignore_index=ignore_index, reduction="sum")
    return _SumOfCrossEntropy.apply(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index)


class _SumOfCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, ignore_index):
        precise = _precise(logits)
        total = torch.zeros((), dtype=precise, device=logits.device)
        for tile in _tiles(logits):
            log_softmax = torch.log_softmax(logits[tile], -1, dtype=precise)
            total += torch.nn.functional.nll_loss(log_softmax, targets[tile], ignore_index=ignore_index, reduction="sum")
        ctx.save_for_backward(logits, targets)
        ctx.ignore_index = ignore_index
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        logits, targets = ctx.saved_tensors
        d_logits = torch.empty_like(logits)
        for tile in _tiles(logits):
            gradient = torch.softmax(logits[tile], -1, dtype=_precise(logits))
            ignored = (targets[tile] == ctx.ignore_index)[:, None]
            column = targets[tile, None].masked_fill(ignored, 0)
            gradient.scatter_add_(-1, column, gradient.new_full((1, 1), -1).expand_as(column))
            d_logits[tile] = gradient.mul_(upstream * ~ignored)
        return d_logits, None, None


def _precise(logits):
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _tiles(logits):
    tokens = max(1, TILE_ELEMENTS.get(logits.device.type, TILE_ELEMENTS["cuda"]) // logits.shape[1])
    return [slice(begin, begin + tokens) for begin in range(0, logits.shape[0], tokens)]
