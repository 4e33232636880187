"""A causal language model of transformers that takes its loss without logits.

    model(input_ids, labels=labels)  -> hidden [B, s, H]  -> the head: sum_of_cross_entropy(hidden, weight, targets)
                                     -> the model's own loss function: that sum / the number of targets

The head learns the targets from the model's call. What the model does between its head and its loss is learnt when the
block begins, by running it on a few tokens with stand-ins for logits (fused_logits.py), and compared with the plain loss.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Iterator, Optional

import torch

from .batch import shifted_labels
from .errors import ConfigError
from .fused_logits import COMPILED_WHOLE, Form, FusedLogits, HeadCall
from .model_in_use import called_for, compiled_around, evaluating, few_ids, pretrained_model_in, vocabulary_of
from .sum_of_cross_entropy import sum_of_cross_entropy


@contextlib.contextmanager
def fused_loss(model: torch.nn.Module, *, tokens_per_tile: Optional[int] = None) -> Iterator[torch.nn.Module]:
    """``with trireme.fused_loss(model): model(**batch, labels=labels).loss``: the same loss, and no logits [B, s, V].

    model: a PreTrainedModel with labels and a linear head, or a module that holds one (wrapped as it is, PEFT). Its call
        and its loss stay its own: ``labels`` [B, s], ``shift_labels``, ``num_items_in_batch``, the loss of a mixture's router. The
        softmax and a cap are in fp32. A batch without a valid target has the loss 0.
    tokens_per_tile: logits of so many tokens exist at a time, forward and backward; None as in :func:`linear_cross_entropy`.

    In the block, ``outputs.logits`` of a call with labels is None; a call without labels makes logits as ever. Undone on
    exit. Backward may come later. Where the model is sharded (DDP, FSDP2, ZeRO), every rank opens the block.
    Raises ConfigError for a head that is not one linear layer (LoRA on it, quantized), and names anything that the model does
    with its logits beside a scale, a cap by tanh and cross entropy.
    """
    target = pretrained_model_in(model, "trireme.fused_loss")
    if tokens_per_tile is not None and tokens_per_tile < 1:
        raise ConfigError(f"tokens_per_tile: got {tokens_per_tile}, expected 1 or more, or None")
    if "labels" not in inspect.signature(target.forward).parameters:
        raise ConfigError(f"trireme.fused_loss: {type(target).__name__} takes no labels, so it has no loss")
    if compiled_around(model, target):
        raise ConfigError(COMPILED_WHOLE)
    with contextlib.ExitStack() as undo:
        head, called = _Head(target, tokens_per_tile), called_for(model, target)
        with evaluating(target):
            ids, labels = _few_tokens(target)
            head.linear = _linear_that_runs(target, lambda: head.keep_plain(called(input_ids=ids, labels=labels)))
            head.hook(undo)
            called(input_ids=ids, labels=labels)
            head.learn()
            fused = called(input_ids=ids, labels=labels)["loss"]
        head.compare(fused)
        yield model


class _Head:
    def __init__(self, target: torch.nn.Module, tokens_per_tile: Optional[int]):
        self.target = target
        self.tokens_per_tile = tokens_per_tile
        self.linear: Optional[torch.nn.Linear] = None
        self.form: Optional[Form] = None  # None until it is learnt
        self.next_token = True  # labels are of the next token, not of the token itself
        self._plain: Optional[torch.Tensor] = None
        self._targets: Optional[torch.Tensor] = None  # of the call that runs
        self._may_be: tuple[torch.Tensor, torch.Tensor]  # its targets, if labels are of the next token, and if not
        self._calls: list[HeadCall] = []

    def hook(self, undo: contextlib.ExitStack) -> None:
        before = self.target.register_forward_pre_hook(self._before, with_kwargs=True)
        undo.callback(before.remove)
        # Before hooks of others (FSDP, trireme.parallelize), which look at outputs.
        undo.callback(self.target.register_forward_hook(self._after, prepend=True, always_call=True).remove)
        self._forward = self.linear.forward
        self.linear.forward = self.forward
        undo.callback(delattr, self.linear, "forward")

    def _before(self, module, arguments, keywords):
        signature = inspect.signature(module.forward)
        given = signature.bind_partial(*arguments, **keywords).arguments
        labels, shifted = given.get("labels"), keywords.get("shift_labels")
        self._calls, self._targets = [], None
        if labels is not None:
            shifted = shifted_labels(labels) if shifted is None else shifted
            self._targets = shifted if self.next_token or keywords.get("shift_labels") is not None else labels
            self._may_be = shifted, labels

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """In the place of the head's."""
        if self._targets is None:
            return self._forward(hidden)
        logits_shape = (*hidden.shape[:-1], self.linear.out_features)
        if self.form is None:
            total, call = hidden.new_zeros((), dtype=torch.float32), HeadCall(Form(), None)
        else:
            call = HeadCall(self.form, self._targets.to(hidden.device))
            if hidden.shape[:-1] != call.targets.shape:
                raise ConfigError(
                    f"trireme.fused_loss: the head got {tuple(hidden.shape[:-1])} tokens for labels of {tuple(call.targets.shape)}: "
                    "leave logits_to_keep out"
                )
            total = sum_of_cross_entropy(
                hidden,
                self.linear.weight,
                call.targets,
                bias=self.linear.bias,
                softcap=self.form.softcap,
                scale=self.form.scale,
                tokens_per_tile=self.tokens_per_tile,
            )
        self._calls.append(call)
        return FusedLogits.make(total, logits_shape, call)

    def _after(self, _module, _arguments, output):
        wanted, self._targets = self._targets is not None, None
        if not wanted or output is None:
            return None
        if [call.taken for call in self._calls] != [1]:
            raise ConfigError(
                f"trireme.fused_loss: {type(self.target).__name__} took {sum(call.taken for call in self._calls)} cross entropies of "
                f"{len(self._calls)} calls of its head, expected one of one: it is refused"
            )
        if isinstance(output, tuple):
            return tuple(value for value in output if not isinstance(value, FusedLogits))
        return type(output)(**{name: value for name, value in output.items() if not isinstance(value, FusedLogits)})

    def keep_plain(self, output) -> None:
        self._plain = output["loss"]

    def learn(self) -> None:
        form, targets = self._calls[0].learnt
        for self.next_token, expected in zip((True, False), self._may_be):
            if targets.numel() == expected.numel() and torch.equal(targets.flatten(), expected.flatten()):
                self.form = form
                return
        name = type(self.target).__name__
        raise ConfigError(f"trireme.fused_loss: {name} takes the loss of other targets than its labels: it is refused")

    def compare(self, fused: torch.Tensor) -> None:
        rounding = 1e-4 if self.linear.weight.dtype in (torch.float32, torch.float64) else 2e-2
        if not abs(fused - self._plain) <= rounding * max(1, abs(self._plain)):
            raise ConfigError(
                f"trireme.fused_loss: {type(self.target).__name__} gives the loss {float(self._plain)} with logits, {float(fused)} "
                "without: it does something between its head and its loss that is not known, and is refused"
            )


def _few_tokens(target: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and labels [2, 12]: no two columns of labels alike."""
    vocabulary = vocabulary_of(target)
    if vocabulary is None:
        raise ConfigError(f"trireme.fused_loss: {type(target).__name__} has no table of token embeddings, so it is refused")
    ids = few_ids(vocabulary, 12).to(next(target.parameters()).device)
    labels = ids.clone()
    labels[0, 3:6] = -100
    return ids, labels


def _linear_that_runs(target: torch.nn.Module, run) -> torch.nn.Linear:
    """The one linear layer of the head; of PEFT's modules_to_save, the copy that is in use."""
    head = target.get_output_embeddings()
    ran: list[torch.nn.Module] = []
    with contextlib.ExitStack() as hooks:
        for module in head.modules() if head is not None else ():
            if not list(module.children()):
                hooks.callback(module.register_forward_hook(lambda module, *_: ran.append(module)).remove)
        run()
    plain = [module for module in ran if getattr(module.forward, "__func__", None) is torch.nn.Linear.forward]
    if len(ran) != 1 or len(plain) != 1:
        raise ConfigError(
            f"trireme.fused_loss: the head of {type(target).__name__} is {type(head).__name__}, in which "
            f"{[type(module).__name__ for module in ran]} ran, expected one linear layer (no LoRA, not quantized, in no other such block)"
        )
    return plain[0]
