"""preprocess_logits_for_metrics on each rank's own tokens, so that its result is gathered and the logits are not.

    logits [B, s, V], labels [B, s] of this rank  --the user's hook-->  [B, s, ...]  --gather-->  [B, S, ...] on every rank

The hook is one by token: what it gives for a token follows from that token's logits and label, as logits.argmax(-1) does.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable, Sequence

import torch

from ..batch import gather, take_spans
from ..errors import ConfigError
from ..sequence_of_call import SequenceOfCall


def check_hook_by_token(trainer: Any, trainer_class: type) -> None:
    """Refuses trainers whose loss reads logits: these are whole on every rank in any case."""
    wants = "with_sequence_parallel(..., logits_by_token=True)"
    if trainer.preprocess_logits_for_metrics is None:
        raise ConfigError(f"{wants}: got no preprocess_logits_for_metrics, expected one, which makes of each token's logits what is gathered")
    readers = {"compute_loss_func": trainer.compute_loss_func, "label_smoothing_factor": trainer.label_smoother}
    for name, reader in readers.items():
        if reader is not None:
            raise ConfigError(f"{wants}: got {name}, whose loss reads the logits of all tokens: leave one of the two out")
    for name in ("compute_loss", "prediction_step"):
        if not getattr(trainer_class, name).__module__.startswith(("transformers.", "trl.")):
            raise ConfigError(
                f"{wants}: got {trainer_class.__name__} with a {name} of its own, which may read the logits of all tokens, expected that of "
                "transformers or trl: leave logits_by_token out"
            )


class HookByToken:
    """Of one evaluation."""

    def __init__(self, hook: Callable):
        self.hook = hook
        self._looked = False  # at the values that it gives

    @torch.no_grad()
    def __call__(self, logits: torch.Tensor, sequence: SequenceOfCall, labels: Any) -> Any:
        """Collective. logits: of this rank's tokens; labels: of all tokens, as a trainer has them. What the hook gives, of all tokens."""
        of_rank = _cut(labels, sequence.shared.spans(sum(sequence.lengths)))
        result = self.hook(logits, of_rank)
        values = result if isinstance(result, tuple) else (result,)
        wrong = _wrong_shape(values, logits) or self._wrong_value(values, logits, of_rank)
        self._looked = True
        kinds = "" if wrong else repr([(value.dtype, value.shape[2:]) for value in values])
        # Together, so that what one rank is refused for, all are.
        verdict = torch.tensor([bool(wrong), zlib.crc32(kinds.encode())], device=logits.device)
        verdicts = {tuple(theirs.tolist()) for theirs in sequence.shared.all_gather(verdict)}
        if wrong or len(verdicts) > 1:
            raise ConfigError(
                f"logits_by_token: preprocess_logits_for_metrics gave {wrong or 'something else on another rank'}, expected a tensor or a tuple "
                f"of tensors [B, s, ...] for its logits [B, s, V] of {tuple(logits.shape)}, each token's of that token's logits and label "
                "alone, as logits.argmax(-1): leave logits_by_token out for one that looks at several tokens"
            )
        whole = tuple(_gathered(value, sequence) for value in values)
        return whole if isinstance(result, tuple) else whole[0]

    def _wrong_value(self, values: Sequence[torch.Tensor], logits: torch.Tensor, labels: Any) -> str:
        """Once: the tokens in the middle by themselves, for which it may give nothing else."""
        begin, end = logits.shape[1] // 3, logits.shape[1] - logits.shape[1] // 3
        if self._looked or begin == 0:
            return ""
        alone = self.hook(logits[:, begin:end], _cut(labels, [(begin, end)]))
        alone = alone if isinstance(alone, tuple) else (alone,)
        same = len(alone) == len(values) and all(map(_same, alone, (value[:, begin:end] for value in values)))
        return "" if same else "other values for some tokens where it had them without the others"


def _cut(labels: Any, spans: Sequence[tuple[int, int]]) -> Any:
    if isinstance(labels, tuple):
        return tuple(_cut(some, spans) for some in labels)
    return take_spans(labels, spans, dim=1) if torch.is_tensor(labels) else labels


def _wrong_shape(values: Sequence[Any], logits: torch.Tensor) -> str:
    for value in values:
        if not torch.is_tensor(value):
            return f"a {type(value).__name__}"
        if value.shape[:2] != logits.shape[:2]:
            return f"a tensor of {tuple(value.shape)}"
    return ""


def _same(one: Any, other: torch.Tensor) -> bool:
    if not torch.is_tensor(one) or one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3, equal_nan=True) if one.is_floating_point() else torch.equal(one, other)


def _gathered(value: torch.Tensor, sequence: SequenceOfCall) -> torch.Tensor:
    """By its bytes, for backends know few types."""
    as_bytes = value.detach().contiguous().unsqueeze(-1).view(torch.uint8)
    return gather(as_bytes, sequence.shared, lengths=sequence.lengths).view(value.dtype).squeeze(-1)
