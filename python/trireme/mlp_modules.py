"""Finds the MLPs of a model by running it on a few tokens, not by names.

An MLP maps [..., H] to [..., H], is wider than H inside, and gives each token an output that depends on that token only: so
another token is changed, and it runs on a part of the tokens, and the others' outputs have to stay as they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Callable, Optional

import torch

from .errors import ConfigError
from .model_in_use import evaluating


def find_mlps(model: torch.nn.Module, run: Callable[[], object]) -> dict[str, torch.nn.Module]:
    """The outermost MLPs by name. run(): a forward pass. Raises ConfigError for one that cannot run in parts."""
    search = _Search({module: name for name, module in model.named_modules()})
    with evaluating(model), contextlib.ExitStack() as hooks:
        for module in search.names:
            hooks.callback(module.register_forward_pre_hook(search.before, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(search.after, prepend=True).remove)  # before FSDP takes parameters away
        run()
    return search.found


@dataclasses.dataclass
class _Call:
    tokens: Optional[torch.Tensor]  # [..., H], where this is the one argument
    widest: int = 0  # of the outputs within
    routed: bool = False  # a layer within saw another number of tokens


class _Search:
    def __init__(self, names: dict[torch.nn.Module, str]):
        self.names = names
        self.found: dict[str, torch.nn.Module] = {}
        self._calls: list[_Call] = []
        self._trying = False

    def before(self, module, arguments, keywords):
        if self._trying:
            return
        given = (*arguments, *keywords.values())
        one = len(given) == 1 and torch.is_tensor(given[0]) and given[0].dim() >= 2 and given[0].is_floating_point()
        self._calls.append(_Call(given[0] if one else None))

    def after(self, module, _arguments, output):
        if self._trying:
            return
        call = self._calls.pop()
        if call.tokens is not None and torch.is_tensor(output) and output.shape == call.tokens.shape:
            wide = call.widest > output.shape[-1]
            experts = call.routed or any(parameter.dim() > 2 for parameter in module.parameters())
            if wide or experts:
                self._trying = True
                try:
                    self._try(module, call.tokens, experts)
                finally:
                    self._trying = False
        if self._calls and call.tokens is not None and torch.is_tensor(output):
            outer = self._calls[-1]
            outer.widest = max(outer.widest, call.widest, output.shape[-1])
            outer.routed |= call.routed
            if outer.tokens is not None and output.dim() > 1:
                outer.routed |= output.shape[:-1].numel() != outer.tokens.shape[:-1].numel()

    def _token_wise(self, module, x) -> bool:
        """Whether each token's output is of that token alone. x: [..., H]."""
        few = x.shape[:-1].numel() // 3
        if few == 0:
            raise ConfigError(f"trireme.tile_mlp: the forward pass has {tuple(x.shape)} at {self.names[module]}, expected 3 tokens or more")
        other = x.flatten(0, -2).clone()
        other[few] = other[few].flip(0) * 0.5 + 0.1
        parts = [part.reshape((1,) * (x.dim() - 2) + part.shape) for part in other.split(few)]
        try:
            y, *outputs = [module.forward(part) for part in (x, *parts)]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False  # wants its tokens in one shape
        if any(output.shape != part.shape for output, part in zip(outputs, parts)):
            return False
        change = (torch.cat([output.flatten(0, -2) for output in outputs]) - y.flatten(0, -2)).abs().float()
        change[few] = 0
        rounding = 1e-4 if x.dtype in (torch.float32, torch.float64) else 2e-2
        return bool(change.max() <= rounding * y.abs().max())

    def _token_wise_in_training(self, module, x) -> bool:
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        state = torch.get_rng_state()
        module.train()
        try:
            return self._token_wise(module, x)
        finally:
            module.eval()
            torch.set_rng_state(state)
            for buffer, value in buffers:
                buffer.copy_(value)

    def _try(self, module, x, experts: bool) -> None:
        if not self._token_wise(module, x):
            return
        name = self.names[module]
        at = f"trireme.tile_mlp: {name} ({type(module).__name__})"
        if experts:
            raise ConfigError(f"{at} routes tokens to experts, whose router's loss wants all tokens at once: it is refused")
        if not self._token_wise_in_training(module, x):
            raise ConfigError(f"{at} drops out values or mixes tokens while it trains; tiles would draw others: it is refused")
        for known in [known for known in self.found if not name or known.startswith(name + ".")]:
            del self.found[known]
        self.found[name] = module
