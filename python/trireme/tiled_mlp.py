"""MLPs that run a tile of tokens at a time, so that their wide activations [s, I] exist for one tile only.

    x [B, s, H]  --a tile of t tokens-->  MLP, [t, I] inside  -->  y [B, s, H]                       (forward, nothing kept but x)
                 --the same tiles again, with d_y-->  d_x [B, s, H], each parameter's gradient once  (backward)

The idea is that of ALST's sequence tiling (arXiv 2506.13996).
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping, Optional

import torch
from torch.distributed.fsdp import FSDPModule

from .errors import ConfigError
from .mlp_modules import find_mlps
from .model_in_use import called_for, few_ids, pretrained_models_in, replace_forward, vocabulary_of
from .once_differentiable import once_differentiable

TOKENS_PER_TILE = 2048


@contextlib.contextmanager
def tile_mlp(
    model: torch.nn.Module, *, tokens_per_tile: int = TOKENS_PER_TILE, example: Optional[Mapping[str, Any]] = None
) -> Iterator[list[str]]:
    """``with trireme.tile_mlp(model): ...``: every MLP of the model in tiles of tokens. Yields their names.

    model: a PreTrainedModel, a module that holds one (wrapped as it is, PEFT), or any module beside an ``example``.
    tokens_per_tile: of B x s tokens together; wide activations of so many exist at a time.
    example: keyword arguments of a small forward pass (3 tokens or more), by which MLPs are found; a model of transformers has
        its own. Where the model is sharded (DDP, FSDP2), every rank opens the block.

    Outputs and gradients are those of the whole, but for the order of sums; a parameter's gradient is added up over tiles
    in fp32 where it is bf16 or fp16, and reaches the parameter once. Backward computes each tile's MLP again; a layer that is
    checkpointed does not compute it a third time where nothing after the MLP asks for it. Forward and backward belong into
    the block. Undone on exit.
    Raises ConfigError, by name, for a model without MLPs, mixtures of experts, dropout or other randomness within an MLP,
    parameters that ZeRO-3 or FSDP1 have partitioned, ``fully_shard`` of layers within an MLP.
    """
    if tokens_per_tile < 1:
        raise ConfigError(f"tokens_per_tile: got {tokens_per_tile}, expected 1 or more")
    found = find_mlps(model, _small_pass(model, example))
    if not found:
        raise ConfigError(
            f"trireme.tile_mlp: found no MLP in {type(model).__name__}: no module of one argument gives each token a value of that "
            "token alone and is wider within"
        )
    with contextlib.ExitStack() as undo:
        for name, module in found.items():
            tiled = _TiledMlp(name, module, tokens_per_tile)
            tiled.check()
            replace_forward(module, tiled.forward, undo)
        yield list(found)


def _small_pass(model, example):
    if example is not None:
        return lambda: model(**example)
    target = next(iter(pretrained_models_in(model).values()), None)
    vocabulary = None if target is None else vocabulary_of(target)
    if vocabulary is None:
        raise ConfigError(f"trireme.tile_mlp: got {type(model).__name__}, no model of transformers with token embeddings: give an example")
    ids, called = few_ids(vocabulary, 12), called_for(model, target)
    return lambda: called(input_ids=ids.to(next(target.parameters()).device))


class _TiledMlp:
    def __init__(self, name: str, module: torch.nn.Module, tokens_per_tile: int):
        self.name = name
        self.module = module
        self.whole = module.forward
        self.tokens_per_tile = tokens_per_tile
        self.again = _Again(module, self.whole)
        self.names = {name for name, _ in module.named_parameters()}

    def check(self) -> None:
        for name, part in self.module.named_modules():
            at = f"trireme.tile_mlp: {self.name}.{name} ({type(part).__name__})"
            if part is not self.module and isinstance(part, FSDPModule):
                raise ConfigError(f"{at} is sharded by itself within an MLP: give fully_shard the layer or the MLP")
            if any(hasattr(parameter, "ds_id") for parameter in part.parameters(recurse=False)):
                raise ConfigError(f"{at} is partitioned by DeepSpeed's ZeRO-3, which is refused: use ZeRO-2 or fully_shard")
        gone = self.names - {name for name, _ in self.module.named_parameters()}
        if gone:
            raise ConfigError(
                f"trireme.tile_mlp: {self.name} has no parameter {min(gone)} while it runs (FullyShardedDataParallel takes it away), so "
                "it is refused: use fully_shard"
            )

    @torch._disable_dynamo
    def forward(self, *arguments, **keywords) -> torch.Tensor:
        """In the place of the module's, of one argument."""
        (x,) = (*arguments, *keywords.values())
        self.check()
        wanted = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        keeper: list = []
        x = _Keep.apply(keeper, x, *wanted.values())
        return _InTiles.apply(self, keeper, list(wanted), x, *wanted.values())

    def tiles(self, tensor_NH: torch.Tensor, dimensions: int) -> list[torch.Tensor]:
        """Views [1, t, H], of as many dimensions as the MLP gets."""
        return [tile.reshape((1,) * (dimensions - 2) + tile.shape) for tile in tensor_NH.split(self.tokens_per_tile)]


class _Again(torch.nn.Module):
    """The MLP as it was, for functional_call: parameters are then given to it."""

    def __init__(self, module, whole):
        super().__init__()
        self.mlp = module
        self._whole = whole

    def forward(self, x):
        return self._whole(x)


class _Keep(torch.autograd.Function):
    """Saves the MLP's input and parameters before it runs: a checkpoint that needs no more than these stops here."""

    @staticmethod
    def forward(ctx, keeper, x, *parameters):
        ctx.save_for_backward(x, *parameters)
        ctx.parameters = len(parameters)
        keeper.append(ctx)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d_x):
        return None, d_x, *[None] * ctx.parameters


class _InTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tiled, keeper, names, x, *_parameters):
        device = x.device.type
        ctx.tiled, ctx.kept, ctx.names = tiled, keeper, names
        ctx.autocast = dict(device_type=device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device))
        y_NH = None
        for number, tile in enumerate(tiled.tiles(x.reshape(-1, x.shape[-1]), x.dim())):
            y = tiled.whole(tile)
            if y_NH is None:
                y_NH = y.new_empty((x.shape[:-1].numel(), x.shape[-1]))
            y_NH[number * tiled.tokens_per_tile :][: y.shape[-2]] = y.reshape(-1, y.shape[-1])
        return y_NH.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y):
        x, *parameters = ctx.kept[0].saved_tensors
        tiled, H = ctx.tiled, x.shape[-1]
        # Stand-ins: hooks of the parameters (DDP, FSDP, the user's) are to see the sum alone.
        given = {f"mlp.{name}": parameter.detach().requires_grad_() for name, parameter in zip(ctx.names, parameters)}
        sums: list = [None] * len(given)
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        rows = zip(*(tiled.tiles(whole.reshape(-1, H), x.dim()) for whole in (x, d_y, d_x.view(-1, H))))
        for x_tile, d_y_tile, d_x_tile in rows:
            leaf = x_tile.detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(**ctx.autocast, cache_enabled=False):
                y = torch.func.functional_call(tiled.again, given, (leaf,))
            d_leaf, *gradients = torch.autograd.grad(y, [leaf, *given.values()], d_y_tile, allow_unused=True)
            d_x_tile.copy_(d_leaf)
            sums = [_add(total, gradient) for total, gradient in zip(sums, gradients)]
        sums = [None if total is None else total.to(parameter.dtype) for total, parameter in zip(sums, parameters)]
        return None, None, None, d_x, *sums


def _add(total: Optional[torch.Tensor], gradient: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    if gradient is None:
        return total
    if total is None:
        return gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient.clone()
    return total.add_(gradient)
