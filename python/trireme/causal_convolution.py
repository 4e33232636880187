"""The short causal convolution before a recurrence, of all documents of a batch at once: a filter a column, then SiLU.

    y_t = silu(sum_i weight[:, W - 1 - i] x_{t - i})    over the taps t - i that are in t's document

Rows go through in blocks that lie in cache, in fp32; backward computes the sums again, so that x alone is kept. Of the package
causal-conv1d, where it is installed, the models' own function is used instead (gated_delta_net.py).
"""

from __future__ import annotations

from typing import Optional, Sequence

import torch

_BLOCK_ELEMENTS = {"cpu": 1 << 17}  # of other devices a call costs more
_ELSEWHERE = 1 << 24


def causal_convolution(x_BSC: torch.Tensor, weight_CW: torch.Tensor, documents: Sequence[torch.Tensor]) -> torch.Tensor:
    """y [B, S, C] of x's dtype. documents: cu_seqlens of each sample, none where each is one document."""
    places_BS = torch.stack([_places(borders, x_BSC.shape[1]) for borders in documents]) if documents else None
    return _CausalConvolution.apply(x_BSC, weight_CW, places_BS)


def _places(borders: torch.Tensor, tokens: int) -> torch.Tensor:
    """[S] uint8 on the host: how many tokens of its document are before each, as far as a filter may reach."""
    borders = borders.cpu().long()
    return (torch.arange(tokens) - torch.repeat_interleave(borders[:-1], borders.diff())).clamp_(max=255).to(torch.uint8)


class _CausalConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, places):
        ctx.save_for_backward(x, weight)
        ctx.places = places
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        filters = weight.to(_wide(x))
        for begin, end in _blocks(x):
            sums = _sums(_taps(x, begin, end, filters.shape[1]), filters, places, begin)
            y[:, begin:end] = torch.nn.functional.silu(sums, inplace=True)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_y):
        x, weight = ctx.saved_tensors
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        filters = weight.to(_wide(x))
        width = filters.shape[1]
        d_filters = torch.zeros_like(filters)
        for begin, end in _blocks(x):
            reached = min(end + width - 1, x.shape[1])  # tokens that read those of the block
            taps = _taps(x, begin, reached, width)
            d_sums = torch.ops.aten.silu_backward(d_y[:, begin:reached].to(filters.dtype), _sums(taps, filters, ctx.places, begin))
            d_block = d_sums[:, : end - begin] * filters[:, -1]
            for back, tap in enumerate(taps):
                of_filter = tap[:, : end - begin] * d_sums[:, : end - begin]
                d_filters[:, width - 1 - back] += _without(of_filter, _cut_off(ctx.places, begin, end, back, x.device)).sum((0, 1))
                last = min(end + back, reached)
                if back > 0 and begin + back < last:
                    of_block = d_sums[:, back : last - begin] * filters[:, width - 1 - back]
                    d_block[:, : of_block.shape[1]] += _without(of_block, _cut_off(ctx.places, begin + back, last, back, x.device))
            dx[:, begin:end] = d_block
        return dx, d_filters.to(weight.dtype), None


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _blocks(x: torch.Tensor):
    rows = max(1, _BLOCK_ELEMENTS.get(x.device.type, _ELSEWHERE) // max(1, x.shape[0] * x.shape[2]))
    return [(begin, min(begin + rows, x.shape[1])) for begin in range(0, x.shape[1], rows)]


def _taps(x, begin: int, end: int, width: int) -> list[torch.Tensor]:
    """x_{t - i} of the tokens t of [begin, end) for i = 0, 1, ..., zero before the sample."""
    first = max(0, begin - width + 1)
    wide = torch.nn.functional.pad(x[:, first:end].to(_wide(x)), (0, 0, first - begin + width - 1, 0))
    return [wide[:, width - 1 - back : width - 1 - back + end - begin] for back in range(width)]


def _sums(taps: list[torch.Tensor], filters: torch.Tensor, places, begin: int) -> torch.Tensor:
    sums = (taps[0] * filters[:, -1]).contiguous()
    rows = sums.view(-1, sums.shape[-1])
    for back, tap in enumerate(taps[1:], start=1):
        cut_off = _cut_off(places, begin, begin + tap.shape[1], back, tap.device)
        before = None if cut_off is None else rows[cut_off]
        sums.addcmul_(tap, filters[:, -1 - back])
        if before is not None:
            rows[cut_off] = before
    return sums


def _cut_off(places, begin: int, end: int, back: int, device) -> Optional[torch.Tensor]:
    """Rows, of the tokens [begin, end) of all samples, from which the token `back` before is in another document."""
    found = None if places is None else (places[:, begin:end] < back).flatten().nonzero().flatten()
    return found.to(device) if found is not None and found.numel() > 0 else None


def _without(values_BtC: torch.Tensor, cut_off: Optional[torch.Tensor]) -> torch.Tensor:
    """Zeros there, in place where values lie one behind the other."""
    if cut_off is not None:
        values_BtC = values_BtC.contiguous()
        values_BtC.view(-1, values_BtC.shape[-1]).index_fill_(0, cut_off, 0)
    return values_BtC
