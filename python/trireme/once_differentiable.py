"""Backward passes that know no derivative of their own.

torch's decorator of this name refuses a second derivative only where what comes from above wants a gradient itself. Of a loss
nothing does, and what such a pass read (weights, activations) would be left out of the derivative without a word.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional

import torch

_MESSAGE = "trireme: attention, Gated DeltaNet, losses and MLPs in tiles have first derivatives alone: a gradient of a gradient (create_graph=True) is refused"


def once_differentiable(backward: Callable) -> Callable:
    """For the backward of an autograd.Function: RuntimeError where a derivative is taken of what it returns."""

    @functools.wraps(backward)
    def checked(ctx, *upstream):
        with torch.no_grad():
            gradients = backward(ctx, *upstream)
        if not torch.is_grad_enabled():  # autograd enables it for create_graph alone
            return gradients
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        fail = torch._C._functions.DelayedError(_MESSAGE.encode(), len(gradients))
        return fail(*map(_that_wants_a_gradient, gradients))

    return checked


def refuse_second_derivative(_ctx, *_upstream):
    """The autograd formula of an operator that is such a pass."""
    raise RuntimeError(_MESSAGE)


def _that_wants_a_gradient(gradient: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if gradient is None else gradient.detach().requires_grad_()
