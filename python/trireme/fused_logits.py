"""What a model's head returns in the place of logits [B, s, V] while `fused_loss` lasts: the sum of their cross entropy.

A model may scale its logits, cap them and change their view before it takes their cross entropy; the head had to know the
scale and the cap before. So each step is written down here, and the cross entropy is given out only if they are those that
the sum was computed with, for the targets that it was computed for. Anything else asked of such logits is refused by name.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Optional

import torch

from .errors import ConfigError

# Of the sum itself: for hooks of DDP, FSDP and ZeRO that look at a head's output.
_ATTRIBUTES = {
    "device", "dtype", "grad_fn", "is_cpu", "is_cuda", "is_floating_point", "is_leaf", "is_meta", "is_sparse", "layout",
    "output_nr", "register_hook", "requires_grad", "retain_grad",
}  # fmt: skip
COMPILED_WHOLE = (
    "trireme.fused_loss: got a model that torch.compile compiles whole, and with fused_loss there are no logits to compile: compile its layers "
    "alone (layer.compile() of each)"
)
_UNCHANGED = {"clone", "contiguous", "float", "to"}
_TIMES = {"__imul__", "__mul__", "__rmul__", "mul", "multiply"}
_OVER = {"__itruediv__", "__truediv__", "div", "divide", "true_divide"}
_VIEWS = {"flatten", "reshape", "view"}


@dataclasses.dataclass(frozen=True)
class Form:
    """The logits are cap(scale * product) with cap(x) = softcap * tanh(x / softcap), or x where softcap is None."""

    scale: float = 1.0
    softcap: Optional[float] = None

    def times(self, factor: float) -> Form:
        return Form(self.scale * factor, None if self.softcap is None else self.softcap * factor)

    def capped(self) -> Optional[Form]:
        return Form(self.scale, 1.0) if self.softcap is None else None


@dataclasses.dataclass
class HeadCall:
    """One call of the head: what it computed, or, where targets is None, what is to be learnt from the model."""

    form: Form
    targets: Optional[torch.Tensor]  # [B, s], shifted
    learnt: Optional[tuple[Form, torch.Tensor]] = None  # form and targets of the cross entropy that was taken
    taken: int = 0


class FusedLogits(torch.Tensor):
    """A scalar, the sum of cross entropy; to the model, logits of `stands_for`."""

    @staticmethod
    def make(total: torch.Tensor, logits_shape: torch.Size, call: HeadCall) -> FusedLogits:
        return FusedLogits._with(total.as_subclass(FusedLogits), torch.Size(logits_shape), Form(), call)

    def _with(self, stands_for, form, call):
        self.stands_for, self.form, self.call = stands_for, form, call
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__self__.__name__ if func.__name__ in ("__get__", "__set__") else func.__name__
        self = next((value for value in (*args, *kwargs.values()) if isinstance(value, cls)), None)
        with torch._C.DisableTorchFunctionSubclass():
            answer = self._answer(name, func, args, kwargs) if self is not None else NotImplemented
        if answer is NotImplemented:
            if torch._guards.TracingContext.try_get() is not None:
                raise ConfigError(COMPILED_WHOLE)
            raise ConfigError(
                f"trireme.fused_loss: the logits are asked for {name}, and there are none: only a scale, a cap by tanh and the "
                "cross entropy of all tokens are known between the head and the loss; the model is refused"
            )
        return answer

    def _answer(self, name, func, args, kwargs):
        if name in _ATTRIBUTES:
            return func(*args, **kwargs)
        if name in ("shape", "size", "dim", "ndim"):
            return func(torch.empty(self.stands_for, device="meta"), *args[1:], **kwargs)
        if name in _UNCHANGED:
            return self
        if name in ("detach", "alias", "view_as"):  # the same logits, elsewhere in the graph
            return func(torch.Tensor.as_subclass(self, torch.Tensor)).as_subclass(FusedLogits)._with(self.stands_for, self.form, self.call)
        if name == "cross_entropy":
            return self._cross_entropy(*args, **kwargs)
        if name in _VIEWS:
            shape = func(torch.empty(self.stands_for, device="meta"), *args[1:], **kwargs).shape
            return self._as(shape, self.form) if shape[-1] == self.stands_for[-1] else NotImplemented
        form = self._step(name, args)
        return NotImplemented if form is None or kwargs else self._as(self.stands_for, form)

    def _as(self, stands_for, form) -> FusedLogits:
        return torch.Tensor.as_subclass(self, torch.Tensor).as_subclass(FusedLogits)._with(stands_for, form, self.call)

    def _step(self, name, args) -> Optional[Form]:
        if name == "tanh":
            return self.form.capped()
        factor = next((value for value in args if isinstance(value, numbers.Real)), None)
        if factor is None or not factor or len(args) != 2 or name not in _TIMES and (name not in _OVER or args[0] is not self):
            return None
        return self.form.times(float(factor) if name in _TIMES else 1 / float(factor))

    def _cross_entropy(
        self, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0
    ):
        """As torch.nn.functional.cross_entropy."""
        if weight is not None or size_average is not None or reduce is not None or label_smoothing or ignore_index != -100:
            raise ConfigError(
                "trireme.fused_loss: the model takes a cross entropy with weights of classes, label smoothing or another "
                "ignore_index than -100: it is refused"
            )
        if reduction not in ("sum", "mean"):
            raise ConfigError(f"trireme.fused_loss: the model takes a cross entropy with reduction={reduction!r}: it is refused")
        call = self.call
        call.taken += 1
        call.learnt = (self.form, target)
        if call.targets is not None:
            if self.form != call.form:
                raise ConfigError(f"trireme.fused_loss: the logits became {self.form} in this call, {call.form} when the block began")
            if target.numel() != call.targets.numel() or not torch.equal(target.flatten(), call.targets.flatten().to(target.device)):
                raise ConfigError("trireme.fused_loss: the model takes the cross entropy of other targets than its labels: it is refused")
        total = torch.Tensor.as_subclass(self, torch.Tensor)
        return total if reduction == "sum" else total / (target != -100).sum().clamp(min=1)
