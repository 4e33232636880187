"""An all-to-all that trades the tokens of a sample for columns, whatever share of them each rank takes.

    x_BsC of this rank's tokens  --to_columns-->  x_BSc, this rank's columns of the whole sample, in its order
    y_BSc                        --to_tokens-->   y_BsC, the columns of every rank, one behind the other

Both are differentiable, and one exchange each way. B batch, s tokens of this rank, S of all, C and c columns.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.distributed as dist

from .batch import take_spans
from .sequence_of_call import SequenceOfCall

Span = tuple[int, int]  # columns [begin, end)


def to_columns(x_BsC: torch.Tensor, sequence: SequenceOfCall, columns: Sequence[Sequence[Span]]) -> torch.Tensor:
    """columns: the spans that each rank takes, in rank order; ranks may take the same. Collective, both ways."""
    batch, shared = x_BsC.shape[0], sequence.shared
    sent = [take_spans(x_BsC, spans, dim=-1).flatten() for spans in columns]
    width = sum(end - begin for begin, end in columns[shared.rank])
    received = _exchange(sent, [batch * tokens * width for tokens in sequence.lengths], shared)
    x_BSc = torch.cat([part.view(batch, tokens, width) for part, tokens in zip(received, sequence.lengths)], dim=1)
    order = sequence.sample_order
    return x_BSc if order is None else x_BSc[:, order.argsort().to(x_BSc.device)]


def to_tokens(y_BSc: torch.Tensor, sequence: SequenceOfCall, widths: Sequence[int]) -> torch.Tensor:
    """widths: columns of each rank's y. Collective, both ways."""
    batch, shared = y_BSc.shape[0], sequence.shared
    order = sequence.sample_order
    if order is not None:
        y_BSc = y_BSc[:, order.to(y_BSc.device)]
    tokens = sequence.lengths[shared.rank]
    sent = [part.flatten() for part in y_BSc.split(sequence.lengths, dim=1)]
    received = _exchange(sent, [batch * tokens * width for width in widths], shared)
    return torch.cat([part.view(batch, tokens, width) for part, width in zip(received, widths)], dim=-1)


@torch._disable_dynamo
def _exchange(sent: list[torch.Tensor], received_elements: list[int], shared) -> Sequence[torch.Tensor]:
    if shared.size == 1:
        return sent
    elements = [part.numel() for part in sent]
    return _AllToAll.apply(torch.cat(sent), elements, received_elements, shared.process_group).split(received_elements)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sent, sent_elements, received_elements, group):
        ctx.rest = sent_elements, received_elements, group
        return _all_to_all(sent, sent_elements, received_elements, group)

    @staticmethod
    def backward(ctx, d_received):
        sent_elements, received_elements, group = ctx.rest
        return _all_to_all(d_received.contiguous(), received_elements, sent_elements, group), None, None, None


def _all_to_all(sent, sent_elements, received_elements, group):
    received, size = sent.new_empty(sum(received_elements)), sent.element_size()
    # As bytes, for gloo does not send every dtype.
    of_bytes = [[size * elements for elements in splits] for splits in (received_elements, sent_elements)]
    dist.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8), *of_bytes, group=group)
    return received
