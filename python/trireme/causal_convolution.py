"""The short causal convolution before a recurrence, of all documents of a batch at once, by Trireme's operator (trireme/kernels/causal_convolution.h).

Of the package causal-conv1d, where it is installed, the models' own function is used instead (gated_delta_net.py).
"""

from __future__ import annotations

from typing import Sequence

import torch

from . import _operators
from .once_differentiable import once_differentiable


@torch._disable_dynamo
def causal_convolution(x_BSC: torch.Tensor, weight_CW: torch.Tensor, documents: Sequence[torch.Tensor]) -> torch.Tensor:
    """silu of the sum of each column's filter over a token and those before it in its document: [B, S, C] of x's dtype.

    documents: cu_seqlens of each sample, none where each is one document. Sums are fp32, or fp64 where the weight is. ValueError: cu_seqlens that are none.
    """
    return _CausalConvolution.apply(x_BSC, weight_CW, list(documents))


class _CausalConvolution(torch.autograd.Function):
    """Keeps x alone: backward computes the sums again."""

    @staticmethod
    def forward(ctx, x, weight, documents):
        ctx.save_for_backward(x, weight)
        ctx.documents = documents
        return _operators.causal_convolution_forward(x, weight, documents)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y):
        x, weight = ctx.saved_tensors
        dx, d_weight = _operators.causal_convolution_backward(d_y, x, weight, ctx.documents)
        return dx, d_weight.to(weight.dtype), None
