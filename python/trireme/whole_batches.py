"""A model that is called with whole batches, as any training loop calls it, while each rank computes its shard.

    input_ids, labels, position_ids, attention_mask [B, S]  --cut-->  [B, s]  --model-->  logits [B, s, V], the loss' share
    values of each token [B, s, ...]  --join-->  [B, S, ...], with gradients; the loss over the targets of all ranks

Every rank of the group has the same batch and gets the same results, so code around the model needs no change. The gradient of a
joined value is this rank's slice: what each rank backpropagates sums over the group to the gradient of one process.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Iterator, Optional

import torch

from .batch import gather_with_gradient, shard
from .errors import ConfigError
from .image_batches import OUTPUTS, check_images, counted_once, has_images
from .loss import loss
from .model_in_use import router_coefficient
from .same_weights import WatchedWeights
from .sequence_group import SequenceGroup
from .sequence_of_call import SequenceOfCall, sequence_of_whole

# The same documents again, for kernels that take borders: position_ids tell them here.
_BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
# Of outputs: a value for each token.
_OF_TOKENS = ("logits", "last_hidden_state", "log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")
_OF_SAMPLE = ("loss", "aux_loss", "router_logits", *OUTPUTS)  # whole already
LOGITS_TOLD_BYTES = 1 << 30  # of an evaluation's gathered logits, above which it says so


class _Loss:
    """What the loss_function gave, to tell whether the model's loss is that and no more."""

    def __init__(self, taken: torch.Tensor):
        self.taken = taken
        self.value = taken.detach().clone()
        self.version = None if taken.is_inference() else taken._version

    def is_all_of(self, loss: torch.Tensor, router: Optional[torch.Tensor]) -> bool:
        if router is None and loss is self.taken and self.version is not None and loss._version == self.version:
            return True
        expected = (self.value if router is None else self.value + router.detach()).to(loss.dtype)
        rounding = 0.0 if router is None else 4 * torch.finfo(loss.dtype).eps
        return torch.allclose(loss.detach(), expected, rtol=rounding, atol=0.0, equal_nan=True)


class WholeBatches:
    def __init__(self, model: torch.nn.Module, shared: SequenceGroup, averaged_over: int):
        self.model = model
        self.shared = shared
        self.averaged_over = averaged_over
        self._logits_beside_loss = False  # logits [B, S, V] of all tokens also where the call gave labels
        self._logits_stay = False  # on the rank whose tokens they are
        self._own_logits = None  # which stayed, and of which sequence
        self._advice_on_logits = ""  # to who evaluates, where they are many
        self._told_of_logits = False
        self._told_of_padding = False
        self._shifted = False  # the call gave shift_labels
        self._num_targets = None
        self._losses: list[_Loss] = []  # taken in the call that runs

    @contextlib.contextmanager
    def losses(self) -> Iterator[None]:
        """The model's loss is that of all ranks while it lasts."""
        self._kept = self.model.__dict__.get("_loss_function")
        self.model.loss_function = self.loss_function
        try:
            yield
        finally:
            del self.model.__dict__["_loss_function"]
            if self._kept is not None:
                self.model.loss_function = self._kept

    @contextlib.contextmanager
    def logits_wanted(self, wanted: bool, stay: bool, advice: str) -> Iterator[None]:
        """While it lasts a call gives logits beside a loss, too, where they are wanted; if they stay, only own_logits() has them.

        advice: said once where many are gathered.
        """
        self._logits_beside_loss, self._logits_stay, self._advice_on_logits = wanted, stay, advice
        try:
            yield
        finally:
            self._logits_beside_loss, self._logits_stay, self._own_logits = False, False, None

    def own_logits(self) -> tuple[torch.Tensor, SequenceOfCall]:
        """[B, s, V] of the last call, and the sequence that its tokens are of."""
        if self._own_logits is None:
            raise ConfigError("logits_by_token: the model gave no logits, expected them for preprocess_logits_for_metrics")
        return self._own_logits

    def cut(self, given: dict[str, Any], weights: WatchedWeights) -> tuple[dict[str, Any], SequenceOfCall, Optional[torch.Tensor]]:
        """Collective. What the model gets, the sequence, and the whole attention_mask where one masks something."""
        if given.get("return_dict") is False:
            raise ConfigError("trireme.parallelize: got return_dict=False, expected True beside whole_batches")
        if given.get("output_hidden_states"):
            raise ConfigError("trireme.parallelize: output_hidden_states is refused beside whole_batches: each would be gathered")
        given = {name: value for name, value in given.items() if value is not None}
        borders = {name: given.pop(name) for name in _BORDERS if name in given}
        self._losses, self._shifted = [], "shift_labels" in given
        self._num_targets = given.get("num_items_in_batch")
        images = has_images(given)
        if images:
            check_images(self.model, given)
        sequence, mask = sequence_of_whole(self.shared, given, weights)
        self._check_borders(borders.get("cu_seq_lens_q"), sequence)
        labels = given.pop("labels", None)
        self._tell_of_padding(given.get("shift_labels") if labels is None else labels, mask)
        if labels is not None and not self._shifted:
            # shard moves "labels" by one token, "shift_labels" by none
            given["labels" if self._next_token() else "shift_labels"] = labels
        if images:  # the model around the language model reads the whole batch, and only its loss a shard (image_batches.py)
            targets = {name: given.pop(name) for name in ("labels", "shift_labels") if name in given}
            part = shard({"input_ids": given["input_ids"], **targets}, self.shared)
            if targets:
                given["shift_labels"] = part["shift_labels"]
        else:
            given = shard(given, self.shared)
        if labels is not None:
            given["labels"] = given["shift_labels"] if self._next_token() else given.pop("shift_labels")
        return given, sequence, mask if "attention_mask" in given and not images else None

    def _tell_of_padding(self, labels: Optional[torch.Tensor], mask: Optional[torch.Tensor]) -> None:
        """Once, on every rank, for a warning may be an error. What a padding token sees differs between attention kernels, and so would a loss
        that counts it.
        """
        if self._told_of_padding or mask is None or not torch.is_tensor(labels) or labels.dim() != 2:
            return
        padding = mask == 0
        if bool((padding[:, 1:] & padding[:, :-1] & (labels[:, 1:] != -100)).any()):
            self._told_of_padding = True
            warnings.warn(
                "trireme.parallelize: got labels of padding tokens that are not -100. Padding tokens see other tokens here than in transformers, whose "
                "kernels differ in it too, and the loss counts them: set their labels to -100",
                stacklevel=2,
            )

    def _tell_of_logits(self, logits: torch.Tensor, tokens: int) -> None:
        """Once, on every rank, for a warning may be an error: before memory ends where nobody thinks of logits."""
        batch, own_tokens, *of_token = logits.shape
        whole_bytes = batch * tokens * math.prod(of_token) * logits.element_size()
        if self._told_of_logits or own_tokens == tokens or whole_bytes <= LOGITS_TOLD_BYTES:
            return
        self._told_of_logits = True
        warnings.warn(
            f"with_sequence_parallel: this evaluation gathers logits of {[batch, tokens, *of_token]} on every rank, {whole_bytes} bytes "
            f"({whole_bytes / (1 << 30):.1f} GiB). {self._advice_on_logits}",
            stacklevel=2,
        )

    def _next_token(self) -> bool:
        """Whether the model's labels are those of the next token; of the token itself, if not."""
        from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForMaskedLMLoss

        taken = self._kept or LOSS_MAPPING.get(getattr(self.model, "loss_type", None), ForCausalLMLoss)  # as transformers does
        if taken not in (ForCausalLMLoss, ForMaskedLMLoss):
            raise ConfigError(
                f"trireme.parallelize: labels with a loss that Trireme does not know, {getattr(taken, '__name__', taken)}: leave "
                "the labels out and take the loss of the logits"
            )
        return taken is ForCausalLMLoss

    def _check_borders(self, cu_seqlens, sequence: SequenceOfCall) -> None:
        if cu_seqlens is None:
            return
        documents = sequence.documents[0].tolist() if sequence.documents else [0, sum(sequence.lengths)]
        if cu_seqlens.tolist() != documents:
            raise ConfigError(
                f"trireme.parallelize: cu_seq_lens_q say {cu_seqlens.tolist()[:8]}..., position_ids {documents[:8]}...: "
                "expected the same documents"
            )

    @torch._disable_dynamo
    def loss_function(self, logits, labels=None, *_rest, shift_labels=None, num_items_in_batch=None, ignore_index=-100, **_more):
        """In the place of the model's: logits [B, s, V] of this rank, targets [B, s]. Collective."""
        targets = labels if shift_labels is None else shift_labels
        taken = loss(
            logits,
            targets,
            self.shared,
            num_targets=num_items_in_batch,
            averaged_over=self.averaged_over,
            ignore_index=ignore_index,
        )
        self._losses.append(_Loss(taken))
        return taken

    def join(self, output: Any, sequence: SequenceOfCall) -> Any:
        """Collective. The model's output for all tokens."""
        fields = {name: value for name, value in output.items() if value is not None}
        unknown = [name for name in fields if name not in _OF_TOKENS and name not in _OF_SAMPLE]
        if unknown:
            raise ConfigError(f"trireme.parallelize: the model gives {unknown[0]}, which Trireme cannot make whole: it is refused")
        router = None
        if "aux_loss" in fields and "loss" in fields:
            router = router_coefficient(self.model, of_trls_head="log_probs" in fields) * fields["aux_loss"]
        if "loss" in fields and "log_probs" not in fields and not (len(self._losses) == 1 and self._losses[0].is_all_of(fields["loss"], router)):
            raise ConfigError(
                f"trireme.parallelize: {type(output).__name__} has a loss that is not what the model's loss_function took, or more than that (a term "
                "that its forward adds would be of this rank's tokens alone): leave the labels out and take the loss of the logits"
            )
        if "loss" in fields and not self._logits_beside_loss:
            fields.pop("logits", None)
        for name in _OF_TOKENS:
            if name in fields:
                if fields[name].shape[1:2] != (sequence.lengths[sequence.shared.rank],):
                    raise ConfigError(
                        f"trireme.parallelize: the model gives {name} of {tuple(fields[name].shape)} for "
                        f"{sequence.lengths[sequence.shared.rank]} tokens of this rank, expected a value for each: it is refused"
                    )
                if name == "logits" and self._logits_stay:
                    self._own_logits = fields.pop(name), sequence
                    continue
                if name == "logits" and self._logits_beside_loss:
                    self._tell_of_logits(fields[name], sum(sequence.lengths))
                fields[name] = gather_with_gradient(fields[name], sequence.shared, sequence.lengths, self.averaged_over)
                if name not in ("logits", "last_hidden_state") and not self._shifted:
                    fields[name] = fields[name][:, :-1]  # the last token has no target: as without shift_labels
        for name in OUTPUTS:
            if name in fields:
                fields[name] = counted_once(fields[name], self.averaged_over / sequence.shared.size)
        if "log_probs" in fields:  # a head that takes no loss of its shard alone (TRL)
            targets = fields["label_mask"].sum().clamp(min=1) if self._num_targets is None else self._num_targets
            fields["loss"] = -fields["log_probs"].sum() / targets
            if router is not None:
                fields["loss"] = fields["loss"] + router
        return type(output)(**fields)
