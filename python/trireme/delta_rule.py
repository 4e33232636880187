"""The gated delta rule (arXiv 2412.06464) of all documents of a batch in one call, by Trireme's operator (trireme/kernels/delta_rule.h)."""

from __future__ import annotations

from typing import Sequence

import torch

from . import _operators
from .once_differentiable import once_differentiable


@torch._disable_dynamo
def gated_delta_rule(q_BSKD, k_BSKD, v_BSVD, decay_BSV, beta_BSV, key_of_value: Sequence[int], documents: Sequence[torch.Tensor]) -> torch.Tensor:
    """o [B, S, V, Dv] of v's dtype; q and k are normalized within. Value head i reads key head key_of_value[i].

    q, k, v of one dtype; decay (logarithms, not above 0) fp32 or fp64. documents: cu_seqlens of each sample, none where each is one document.
    Computed in fp32, or fp64 where v is fp64. ValueError: cu_seqlens that are none; RuntimeError: shapes that do not agree.
    """
    return _GatedDeltaRule.apply(q_BSKD, k_BSKD, v_BSVD, decay_BSV, beta_BSV, list(key_of_value), list(documents))


class _GatedDeltaRule(torch.autograd.Function):
    """Keeps its inputs, and the state where a segment begins (kernels/delta_rule_bytes.h)."""

    @staticmethod
    def forward(ctx, q, k, v, decay, beta, key_of_value, documents):
        o, states = _operators.delta_rule_forward(q, k, v, decay, beta, key_of_value, documents, any(ctx.needs_input_grad))
        ctx.save_for_backward(q, k, v, decay, beta, states)
        ctx.key_of_value, ctx.documents = key_of_value, documents
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        gradients = _operators.delta_rule_backward(d_o, *ctx.saved_tensors, ctx.key_of_value, ctx.documents)
        return *gradients, None, None
