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
from ..sequence_group import SequenceGroup
from ..sequence_of_call import SequenceOfCall

_PADDING = -100  # in logits and labels, as a trainer pads both


def check_hook_by_token(trainer: Any, trainer_class: type) -> None:
    """Refuses trainers that have no hook, or whose loss reads logits: these are whole on every rank in any case."""
    wants = "with_sequence_parallel(..., logits_by_token=True)"
    if why := _needs_whole_logits(trainer, trainer_class):
        raise ConfigError(f"{wants}: got {why}: leave logits_by_token out")
    if trainer.preprocess_logits_for_metrics is None:
        raise ConfigError(f"{wants}: got no preprocess_logits_for_metrics, expected one, which makes of each token's logits what is gathered")


def advice_on_logits(trainer: Any, trainer_class: type) -> str:
    """What can be done about an evaluation's logits that are gathered whole, by what the trainer has."""
    if why := _needs_whole_logits(trainer, trainer_class):
        loss_alone = "prediction_loss_only=True gathers none, unless the loss reads them"
        return f"logits_by_token=True is not for it ({why}); {loss_alone}, and a smaller per_device_eval_batch_size fewer at once"
    hook = "a preprocess_logits_for_metrics" if trainer.preprocess_logits_for_metrics is None else "its preprocess_logits_for_metrics"
    return (
        f"If the metrics need of each token something of its own logits alone (logits.argmax(-1)), {hook} that gives it and "
        "with_sequence_parallel(..., logits_by_token=True) gather that alone; evaluation of the loss (prediction_loss_only=True) gathers none"
    )


def _needs_whole_logits(trainer: Any, trainer_class: type) -> str:
    """Why logits_by_token is not for it; empty where it is."""
    if any(base.__name__ == "DPOTrainer" and base.__module__.startswith("trl.") for base in trainer_class.__mro__):
        return f"{trainer_class.__name__}, and trl's DPOTrainer takes no preprocess_logits_for_metrics"
    readers = {"compute_loss_func": trainer.compute_loss_func, "label_smoothing_factor": trainer.label_smoother}
    for name, reader in readers.items():
        if reader is not None:
            return f"{name}, whose loss reads the logits of all tokens"
    for name in ("compute_loss", "prediction_step"):
        if not getattr(trainer_class, name).__module__.startswith(("transformers.", "trl.")):
            return f"{trainer_class.__name__} with a {name} of its own, which may read the logits of all tokens, not that of transformers or trl"
    return ""


class HookByToken:
    """Of one evaluation. data_group: the ranks that have this one's rank in their sequence groups, whose batches may have other lengths."""

    def __init__(self, hook: Callable, data_group: SequenceGroup):
        self.hook = hook
        self.data_group = data_group
        self._looked = False  # at the values that it gives

    @torch.no_grad()
    def __call__(self, logits: torch.Tensor, sequence: SequenceOfCall, labels: Any) -> Any:
        """Collective over all data ranks. logits: of this rank's tokens; labels: of all tokens, as a trainer has them.

        What the hook gives, of all tokens, and of padding up to the longest batch of the data ranks.
        """
        tokens = sum(sequence.lengths)
        result, of_padding, failure, given = None, None, None, ""
        wrong = _wrong_labels(labels, tokens)
        if not wrong:
            of_rank = _cut(labels, sequence.shared.spans(tokens))
            try:
                result, wrong = self._of_rank(logits, of_rank)
                if not wrong and self.data_group.size > 1:
                    given = " for padding, whose logits and labels are -100,"
                    of_padding = self._of_padding(logits, of_rank)
            except Exception as error:  # others wait for this rank's verdict
                failure, wrong = error, f"preprocess_logits_for_metrics raised{given} {type(error).__name__}: {error}"
        kinds = "" if wrong else repr([(value.dtype, value.shape[2:]) for value in _values(result)])
        # Together, so that what one rank is refused for, all are: of the sample first, then of all data ranks.
        refused, longest = bool(wrong), tokens
        for group in (sequence.shared, self.data_group):
            verdict = torch.tensor([refused, zlib.crc32(kinds.encode()), longest], device=logits.device)
            verdicts = [theirs.tolist() for theirs in group.all_gather(verdict)]
            refused = any(theirs[0] or theirs[1] != verdicts[0][1] for theirs in verdicts)
            longest = max(theirs[2] for theirs in verdicts)
        if refused:
            raise ConfigError(
                f"logits_by_token: {wrong or 'preprocess_logits_for_metrics gave something else on another rank'}, expected a label for each of "
                f"{tokens} tokens, and a tensor or a tuple of tensors [B, s, ...] for logits [B, s, V] of {tuple(logits.shape)}, each token's of "
                "that token's logits and label alone, as logits.argmax(-1): leave logits_by_token out for a hook that looks at several tokens, and "
                "for a model that adds tokens (prompt tuning)"
            ) from failure
        whole = [_gathered(value.to(logits.device), sequence) for value in _values(result)]
        if longest > tokens:
            whole = _padded(whole, longest - tokens, of_padding)
        return tuple(whole) if isinstance(result, tuple) else whole[0]

    def _of_rank(self, logits: torch.Tensor, labels: Any) -> tuple[Any, str]:
        """What it gives for this rank's tokens, and what is wrong with that.

        Once it gets the tokens in the middle by themselves, too, for which it may give nothing else.
        """
        begin, end = logits.shape[1] // 3, logits.shape[1] - logits.shape[1] // 3
        look, self._looked = not self._looked and begin > 0, True
        # Before the hook, which may change its logits.
        middle = (logits[:, begin:end].clone(), _cut(labels, [(begin, end)])) if look else None
        result = self.hook(logits, labels)
        values = _values(result)
        wrong = _wrong_shape(values, logits)
        if wrong or middle is None:
            return result, wrong
        alone = _values(self.hook(*middle))
        same = len(alone) == len(values) and all(map(_same, alone, (value[:, begin:end] for value in values)))
        return result, "" if same else "preprocess_logits_for_metrics gave other values for some tokens where it had them without the others"

    def _of_padding(self, logits: torch.Tensor, labels: Any) -> Sequence[torch.Tensor]:
        """What it gives for a token of padding, as a trainer calls it."""
        return _values(self.hook(torch.full_like(logits[:, :1], _PADDING), _each(lambda some: torch.full_like(some[:, :1], _PADDING), labels)))


def _padded(values: Sequence[torch.Tensor], missing: int, of_padding: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Accelerate would add -100, which makes numbers of bool on a short rank alone."""
    ends = [end.to(value).expand(-1, missing, *value.shape[2:]) for value, end in zip(values, of_padding)]
    return [torch.cat(pair, dim=1) for pair in zip(values, ends)]


def _values(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


def _each(function: Callable[[torch.Tensor], Any], labels: Any) -> Any:
    """Of what a trainer has as labels: a tensor, a tuple where it has several, or none."""
    if isinstance(labels, tuple):
        return tuple(_each(function, some) for some in labels)
    return function(labels) if torch.is_tensor(labels) else labels


def _cut(labels: Any, spans: Sequence[tuple[int, int]]) -> Any:
    return _each(lambda some: take_spans(some, spans, dim=1), labels)


def _wrong_labels(labels: Any, tokens: int) -> str:
    shapes: list[tuple[int, ...]] = []
    _each(lambda some: shapes.append(tuple(some.shape)), labels)
    wrong = [shape for shape in shapes if shape[1:2] != (tokens,)]
    return f"got labels of {wrong[0]}" if wrong else ""


def _wrong_shape(values: Sequence[Any], logits: torch.Tensor) -> str:
    for value in values:
        if not torch.is_tensor(value):
            return f"preprocess_logits_for_metrics gave a {type(value).__name__}"
        if value.shape[:2] != logits.shape[:2]:
            return f"preprocess_logits_for_metrics gave a tensor of {tuple(value.shape)}"
    return ""


def _same(one: Any, other: torch.Tensor) -> bool:
    if not torch.is_tensor(one) or one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3, equal_nan=True) if one.is_floating_point() else torch.equal(one, other)


def _gathered(value: torch.Tensor, sequence: SequenceOfCall) -> torch.Tensor:
    """By its bytes, for backends know few types."""
    as_bytes = value.detach().contiguous().unsqueeze(-1).view(torch.uint8)
    return gather(as_bytes, sequence.shared, lengths=sequence.lengths).view(value.dtype).squeeze(-1)
