"""What torch.compile and autograd know of the operators of attention: shapes without values, and derivatives.

Loading the operators imports this (_operators.py), as torch takes formulas only for operators that it has.
"""

import torch
import torch.distributed as dist

from .attention_arguments import AttentionArguments
from .once_differentiable import refuse_second_derivative


@torch.library.register_fake("trireme::ulysses_forward")
def _(q, k, v, sinks, *arguments):
    group, ring, lengths, *_ = AttentionArguments(*arguments)
    rank = dist.distributed_c10d._resolve_process_group(group).rank() if group else 0
    ranks = len(lengths) // ring
    ulysses_rank, ring_rank = rank % ranks, rank // ranks
    heads = q.shape[2] // ranks + (ulysses_rank < q.shape[2] % ranks)
    lse = (q.shape[0], heads, sum(lengths[ring_rank * ranks : (ring_rank + 1) * ranks]))
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(lse, dtype=lse_dtype)


@torch.library.register_fake("trireme::ulysses_backward")
def _(d_o, q, k, v, sinks, o, lse, *_arguments):
    d_sinks = lse.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)), d_sinks)


def _setup_context(ctx, inputs, output):
    q, k, v, sinks, *arguments = inputs
    arguments = AttentionArguments(*arguments)
    ctx.save_for_backward(q, k, v, sinks, *output, *arguments.cu_seqlens)
    ctx.arguments = arguments._replace(cu_seqlens=[])


def _backward(ctx, d_o, _d_lse):
    q, k, v, sinks, o, lse, *cu_seqlens = ctx.saved_tensors
    arguments = ctx.arguments._replace(cu_seqlens=cu_seqlens)
    dq, dk, dv, d_sinks = torch.ops.trireme.ulysses_backward(d_o, q, k, v, sinks, o, lse, *arguments)
    no_gradients = {**dict.fromkeys(arguments._fields), "cu_seqlens": [None] * len(cu_seqlens)}
    return dq, dk, dv, None if sinks is None else d_sinks, *no_gradients.values()


torch.library.register_autograd("trireme::ulysses_forward", _backward, setup_context=_setup_context)
torch.library.register_autograd("trireme::ulysses_backward", refuse_second_derivative)
