"""What trireme.verify found, in the words of `trireme verify`, the program's command."""

from __future__ import annotations

import dataclasses
import math

import torch

SHOWN = 5  # gradients in the report


@dataclasses.dataclass(frozen=True)
class GradientError:
    name: str  # of the parameter
    error: float  # largest |over the ranks - alone| / largest |alone|; infinite where one of them is not finite
    largest: float  # |alone|


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """What :func:`trireme.verify` found; ``print`` it, or ``assert result.passed, result``."""

    loss: float
    reference_loss: float  # of the model alone, as what follows
    gradient_norm: float
    reference_gradient_norm: float
    gradients: list[GradientError]  # of every parameter that wants one, worst first
    tolerance: float  # of each gradient's largest entry, and of the norm
    loss_tolerance: float  # of the loss
    dtype: torch.dtype  # in which the model computes
    ranks: int
    batch: int
    sequence_tokens: int

    @property
    def worst(self) -> GradientError:
        return self.gradients[0]

    @property
    def passed(self) -> bool:
        return (
            _relative(self.loss, self.reference_loss) <= self.loss_tolerance
            and _relative(self.gradient_norm, self.reference_gradient_norm) <= self.tolerance
            and self.worst.error <= self.tolerance
        )

    def __str__(self) -> str:
        rows = [f"   {row.error:.2e}   {row.largest:.2e}   grad.{row.name}" for row in self.gradients[:SHOWN]]
        wrong = sum(not row.error <= self.tolerance for row in self.gradients)
        return "\n".join(
            [
                f"input    {self.batch} x {self.sequence_tokens} tokens over {self.ranks} rank{'s' * (self.ranks > 1)}, {self.dtype}",
                f"loss     {self.loss:.7f}, reference {self.reference_loss:.7f}, tolerance {self.loss_tolerance:.1e} of it",
                f"norm     {self.gradient_norm:.7f}, reference {self.reference_gradient_norm:.7f}",
                "   error      largest    tensor",
                *rows,
                f"{'PASSED' if self.passed else 'FAILED'}: {len(self.gradients)} gradients, tolerance {self.tolerance:.1e} of each "
                f"one's largest entry" + (f", {wrong} beyond it" if wrong else ""),
                *([f"{self.dtype} rounds much: copy.deepcopy(model).float() gives the sharp answer"] if self.dtype.itemsize == 2 else []),
            ]
        )


def _relative(value: float, reference: float) -> float:
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference else math.inf
