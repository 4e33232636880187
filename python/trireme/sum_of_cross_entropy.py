"""Cross entropy of logits that never exist whole: the head's product and the softmax, tile by tile of tokens.

    hidden_NH, weight_VH  --a tile of t tokens-->  logits_tV  -->  losses_N, log_sum_exp_N       (forward)
                          --the same tiles again-->  d_logits_tV  -->  d_hidden_NH, d_weight_VH  (backward)

N tokens, H hidden width, V vocabulary. Backward computes the logits again rather than keep gradients from forward: the
upstream gradient (a loss scale, an accumulation's share) then meets d_logits in fp32, before they are rounded to the
model's dtype, as in plain PyTorch; and nothing of [V, H] waits between the two. The price is one more product of the head.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from .errors import ConfigError
from .once_differentiable import once_differentiable

CPU_TILE_TOKENS = 1024
GPU_TILE_BYTES, GPU_TILE_STEP, MOST_GPU_TILE_TOKENS = 1 << 30, 256, 16384


def tile_tokens_by_rule(vocabulary: int, device: str) -> int:
    """Of a GPU by its logits in fp32, as in the engine (trireme/forecast/tile_rules.h): each tile reads the weight and adds to
    its gradient once more, which 1,024 tokens are too few to hide there."""
    if device == "cpu":
        return CPU_TILE_TOKENS
    tokens = GPU_TILE_BYTES // (4 * vocabulary) // GPU_TILE_STEP * GPU_TILE_STEP
    return max(GPU_TILE_STEP, min(tokens, MOST_GPU_TILE_TOKENS))


@torch._disable_dynamo
def sum_of_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: Optional[torch.Tensor] = None,
    softcap: Optional[float] = None,
    scale: float = 1.0,
    ignore_index: int = -100,
    tokens_per_tile: Optional[int] = None,
) -> torch.Tensor:
    """The sum over this rank's valid targets, a scalar of fp32 (fp64 for fp64). Not collective.

    hidden: [..., H]; weight: [V, H]; bias: [V]; targets: [...], already shifted; else as in :func:`linear_cross_entropy`.
    tokens_per_tile: None for tile_tokens_by_rule. Gradients of hidden, weight and bias, each only where one is wanted; that of
    the weight is added up in fp32, within a tile and over the tiles, and rounded once.
    """
    _check(hidden, weight, targets, bias, softcap, tokens_per_tile)
    device = hidden.device.type
    tokens_per_tile = tokens_per_tile or tile_tokens_by_rule(len(weight), device)
    cast = torch.is_autocast_enabled(device) and hidden.dtype != torch.float64
    dtype = torch.get_autocast_dtype(device) if cast else hidden.dtype
    head = _Head(dtype, float(scale), None if softcap is None else float(softcap), tokens_per_tile, ignore_index)
    return _SumOfCrossEntropy.apply(hidden.reshape(-1, hidden.shape[-1]), weight, bias, targets.reshape(-1), head)


@dataclasses.dataclass(frozen=True)
class _Head:
    dtype: torch.dtype  # of the products
    scale: float
    softcap: Optional[float]
    tokens_per_tile: int
    ignore_index: int

    def logits(self, hidden_tH, weight_VH, bias_V):
        """[t, V] in the softmax's dtype."""
        logits = torch.nn.functional.linear(hidden_tH.to(self.dtype), weight_VH, bias_V)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.scale != 1:
            logits.mul_(self.scale)
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def gradient_before(self, d_logits, logits):
        """Of the product, from that of the logits: through the cap and the scale, in place."""
        if self.softcap is not None:
            d_logits.mul_(logits.div_(self.softcap).square_().neg_().add_(1))
        return d_logits if self.scale == 1 else d_logits.mul_(self.scale)

    def tiles(self, tokens: int):
        return [slice(begin, begin + self.tokens_per_tile) for begin in range(0, tokens, self.tokens_per_tile)]

    def cast(self, weight, bias):
        return weight.to(self.dtype), None if bias is None else bias.to(self.dtype)


class _SumOfCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, head):
        precise = torch.float64 if head.dtype == torch.float64 else torch.float32
        losses, log_sum_exp = hidden.new_zeros((2, len(targets)), dtype=precise)
        with torch.autocast(hidden.device.type, enabled=False):
            cast = head.cast(weight, bias)
            for tile in head.tiles(len(targets)):
                logits = head.logits(hidden[tile], *cast)
                valid, column = _column(targets[tile], head.ignore_index)
                log_sum_exp[tile] = logits.logsumexp(-1)
                losses[tile] = (log_sum_exp[tile] - logits.gather(-1, column)[:, 0]).masked_fill_(~valid, 0)
        ctx.save_for_backward(hidden, weight, bias, targets, log_sum_exp)
        ctx.head = head
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        hidden, weight, bias, targets, log_sum_exp = ctx.saved_tensors
        head, wanted = ctx.head, ctx.needs_input_grad
        d_hidden = torch.empty_like(hidden) if wanted[0] else None
        d_weight = torch.zeros_like(weight, dtype=log_sum_exp.dtype) if wanted[1] else None
        d_bias = torch.zeros_like(bias, dtype=log_sum_exp.dtype) if wanted[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            cast = head.cast(weight, bias)
            for tile in head.tiles(len(targets)):
                logits = head.logits(hidden[tile], *cast)
                valid, column = _column(targets[tile], head.ignore_index)
                d_logits = torch.sub(logits, log_sum_exp[tile, None], out=logits if head.softcap is None else None).exp_()
                d_logits.scatter_add_(-1, column, d_logits.new_full((1, 1), -1).expand_as(column))
                d_logits.mul_(upstream).masked_fill_(~valid[:, None], 0)
                d_product = head.gradient_before(d_logits, logits).to(head.dtype)
                del logits, d_logits
                if wanted[0]:
                    d_hidden[tile] = d_product @ cast[0]
                if wanted[1]:
                    add_product(d_weight, d_product.T, hidden[tile].to(head.dtype))
                if wanted[2]:
                    d_bias += d_product.sum(0, dtype=d_bias.dtype)
        return d_hidden, _as(d_weight, weight), _as(d_bias, bias), None, None


def add_product(sum_VH, d_product_Vt, hidden_tH):
    """In the sum's dtype, within the product too."""
    if d_product_Vt.dtype == sum_VH.dtype:
        sum_VH.addmm_(d_product_Vt, hidden_tH)
    elif has_mixed_product(sum_VH.device.type):
        torch.addmm(sum_VH, d_product_Vt, hidden_tH, out_dtype=sum_VH.dtype, out=sum_VH)
    else:
        sum_VH.addmm_(d_product_Vt.to(sum_VH.dtype), hidden_tH.to(sum_VH.dtype))


def has_mixed_product(device: str) -> bool:
    """Of 16-bit factors into fp32."""
    return device == "cuda"


def _column(targets, ignore_index):
    """Which tokens have a target, and it, [t, 1]; class 0 where there is none."""
    valid = targets != ignore_index
    return valid, targets.where(valid, 0)[:, None]


def _as(gradient, parameter):
    return None if gradient is None else gradient.to(parameter.dtype)


def _check(hidden, weight, targets, bias, softcap, tokens_per_tile) -> None:
    shapes = f"got hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, targets {tuple(targets.shape)}"
    if hasattr(weight, "ds_id") and weight.numel() == 0:
        raise ConfigError(
            "linear_cross_entropy: got a weight that ZeRO-3 has partitioned, expected it whole: trireme.fused_loss computes within "
            "the head's own call, where DeepSpeed gathers it"
        )
    if any(hasattr(tensor, "device_mesh") for tensor in (hidden, weight, bias)):
        raise ConfigError("linear_cross_entropy: got a DTensor, expected whole tensors of this rank (tensor parallel heads are refused)")
    if hidden.dim() < 2 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1] or hidden.shape[:-1] != targets.shape:
        raise ConfigError(f"linear_cross_entropy: {shapes}; expected [B, s, H], [V, H] and [B, s]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ConfigError(f"linear_cross_entropy: got a bias {tuple(bias.shape)} beside a weight {tuple(weight.shape)}, expected [V]")
    dtypes = {tensor.dtype for tensor in (hidden, weight, bias) if tensor is not None}
    if not hidden.is_floating_point() or len(dtypes) != 1 and not torch.is_autocast_enabled(hidden.device.type):
        raise ConfigError(f"linear_cross_entropy: got {sorted(map(str, dtypes))}; expected one floating dtype, or autocast")
    if softcap is not None and not softcap > 0:
        raise ConfigError(f"softcap: got {softcap}, expected a number above 0, or None")
    if tokens_per_tile is not None and tokens_per_tile < 1:
        raise ConfigError(f"tokens_per_tile: got {tokens_per_tile}, expected 1 or more, or None")
