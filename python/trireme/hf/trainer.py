"""Trainer, SFTTrainer, DPOTrainer over ranks that share each sample.

    batch [B, S], the same on a sequence group's ranks --Trainer's own code--> model (whole_batches) --> loss, values of each token [B, S]

The model is called with whole batches and answers as it would alone, so the loss, label smoothing, metrics, accumulation, checkpoints and
callbacks stay the trainer's own. To it, the ranks of a sequence group are as those of tensor parallelism: they hold the same batch.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import Iterator, Optional, TypeVar

import transformers
from accelerate.utils import DistributedType
from transformers.trainer_utils import has_length

from ..errors import ConfigError
from ..model_calls import ModelCalls
from ..model_in_use import pretrained_model_in
from ..parallelize import over_ranks
from .logits_by_token import HookByToken, advice_on_logits, check_hook_by_token
from .trainer_sizes import TrainerSizes, source_of

TESTED_TRL = "1.16."
Trainer = TypeVar("Trainer", bound=type)


def with_sequence_parallel(
    trainer_class: Trainer, *, sp_size: Optional[int] = None, sp_ring: Optional[int] = None, logits_by_token: bool = False
) -> Trainer:
    """``with_sequence_parallel(SFTTrainer)(model, args, ...)``: the trainer, with its signature, whose ranks share each sample.

    trainer_class: transformers.Trainer, or trl's SFTTrainer or DPOTrainer, or a class of yours that derives from one of them.
    sp_size: ranks that share a sample; if None, PARALLELISM_CONFIG_SP_SIZE of the environment, or all ranks. Beside an
        ``args.parallelism_config`` (a trireme.hf.ParallelismConfig) leave both sizes out, or give the same.
    sp_ring: of them, those of the ring, for more ranks than query heads (trireme.SequenceGroup).
    logits_by_token: the trainer's preprocess_logits_for_metrics gives for each token something of that token's logits and label alone, as
        ``lambda logits, labels: logits.argmax(-1)`` does. It is called on each rank's tokens, logits [B, s, V] and labels [B, s], and what it
        gives is gathered: a tensor or a tuple of tensors [B, s, ...]. Otherwise it gets the logits whole. DPOTrainer has no such hook.

    A batch is what one sequence group trains on: per_device_train_batch_size samples, of which each rank holds its tokens. Losses,
    gradients, gradient norm and logs are those of one process for each group. Logits are gathered whole, [B, S, V] on every rank,
    where something asks for them: compute_loss_func, label_smoothing_factor, compute_metrics without logits_by_token.
    Raises ConfigError for what it refuses: another parallelism_config, use_liger_kernel, neftune_noise_alpha, and what trireme.parallelize refuses.
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, transformers.Trainer)):
        raise ConfigError(f"with_sequence_parallel: got {trainer_class!r}, expected a class that derives from transformers.Trainer")
    if issubclass(trainer_class, _SequenceParallel):
        raise ConfigError(f"with_sequence_parallel: got {trainer_class.__name__}, which it has made already: use that")
    theirs = [base for base in trainer_class.__mro__ if base.__module__.startswith("trl.") and issubclass(base, transformers.Trainer)]
    if theirs and not sys.modules["trl"].__version__.startswith(TESTED_TRL):
        raise ConfigError(
            f"with_sequence_parallel: got trl {sys.modules['trl'].__version__}, expected {TESTED_TRL}x, whose losses of each token it reads"
        )
    if theirs and theirs[0].__name__ not in ("SFTTrainer", "DPOTrainer"):  # GKDTrainer derives from SFTTrainer, and generates
        raise ConfigError(
            f"with_sequence_parallel: got {trainer_class.__name__}, which is or derives from trl's {theirs[0].__name__}; of trl's trainers, expected "
            "SFTTrainer or DPOTrainer: others generate, or score samples whole"
        )

    @functools.wraps(trainer_class.__init__)
    def init(self, *arguments, **keywords):
        given = next((value for value in (*arguments, *keywords.values()) if isinstance(value, transformers.TrainingArguments)), None)
        config = getattr(given, "parallelism_config", None)
        self._given_config = None if config is getattr(given, "_trireme_made_config", None) else config
        self._counts_by_mask = weakref.WeakKeyDictionary()
        trainer_class.__init__(self, *arguments, **keywords)
        if logits_by_token:
            check_hook_by_token(self, trainer_class)
        self._advice_on_logits = advice_on_logits(self, trainer_class)
        if self.label_smoother is not None:
            self.label_smoother = functools.partial(_smoothed, self.label_smoother, self._loss_shifts_labels)

    own = {"_sp_size": sp_size, "_sp_ring": sp_ring, "_logits_by_token": logits_by_token, "__init__": init}
    own.update({"__doc__": trainer_class.__doc__, "__module__": trainer_class.__module__})
    return type(f"SequenceParallel{trainer_class.__name__}", (_SequenceParallel, trainer_class), own)


class _SequenceParallel(TrainerSizes):
    trireme_shares_samples = True  # to ParallelismConfig, which refuses a plain trainer
    _logits_by_token: bool
    _advice_on_logits: str
    _hook_by_token: Optional[HookByToken] = None  # of the evaluation that runs
    _running: Optional[list[ModelCalls]] = None  # the model's, and its reference's, while they are over ranks
    _counts_by_mask: weakref.WeakKeyDictionary  # of the models that were looked at
    _looks: list  # at those that were not: they run, so they wait until the trainer has wrapped the model

    def _inner_training_loop(self, *arguments, **keywords):
        self._forget_evaluation()
        with self._over_ranks():
            return super()._inner_training_loop(*arguments, **keywords)

    def _forget_evaluation(self) -> None:
        """Of a model that evaluate() prepared Accelerate believes that it is done, and would train it without DDP, each rank for itself."""
        wrapped_by_ddp = self.accelerator.distributed_type in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
        uncompiled = getattr(self.model_wrapped, "_orig_mod", self.model_wrapped)
        if wrapped_by_ddp and uncompiled is self.model and getattr(self.model, "_is_accelerate_prepared", False):
            self.accelerator._models = [model for model in self.accelerator._models if model is not self.model]
            # Not by unwrap_model, which would take TRL's forward away with Accelerate's.
            if (before := vars(self.model).pop("_original_forward", None)) is not None:
                self.model.forward = before
            self.model_wrapped = self.model
            del self.model._is_accelerate_prepared

    def evaluation_loop(self, dataloader, *arguments, **keywords):
        with self._over_ranks(), self._own_hook():
            output = super().evaluation_loop(dataloader, *arguments, **keywords)
        source = source_of(dataloader)
        return output._replace(num_samples=len(source.dataset)) if source is not dataloader and has_length(source.dataset) else output

    def _precompute_ref_logps(self, *arguments, **keywords):
        with self._over_ranks():
            return super()._precompute_ref_logps(*arguments, **keywords)

    def compute_ref_log_probs(self, *arguments, **keywords):
        self._look_once()
        return super().compute_ref_log_probs(*arguments, **keywords)

    def training_step(self, *arguments, **keywords):
        self._look_once()
        return super().training_step(*arguments, **keywords)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        self._look_once()
        hook = None if prediction_loss_only else self._hook_by_token
        whole = self._running[0].whole
        with whole.logits_wanted(not prediction_loss_only, stay=hook is not None, advice=self._advice_on_logits):
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, logits if hook is None else hook(*whole.own_logits(), labels), labels

    @contextlib.contextmanager
    def _own_hook(self) -> Iterator[None]:
        """prediction_step calls it in the place of the evaluation loop."""
        if not self._logits_by_token or self._hook_by_token is not None:  # compute_metrics may call predict()
            yield
            return
        hook = self.preprocess_logits_for_metrics
        self._hook_by_token = HookByToken(hook, self.args.parallelism_config.data_group())
        self.preprocess_logits_for_metrics = None
        try:
            yield
        finally:
            self._hook_by_token, self.preprocess_logits_for_metrics = None, hook

    @contextlib.contextmanager
    def _over_ranks(self) -> Iterator[None]:
        if self._running is not None:
            yield
            return
        config = self.args.parallelism_config
        group = config.sequence_group()
        models = [self.model] if getattr(self, "ref_model", None) is None else [self.model, self.ref_model]
        with contextlib.ExitStack() as undo:
            self._running, self._looks = [], []
            undo.callback(setattr, self, "_running", None)
            undo.callback(lambda: setattr(self, "gather_function", self.accelerator.gather_for_metrics))  # as it is then
            undo.enter_context(config.gather_once(self.accelerator))
            self.gather_function = functools.partial(
                self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
            )
            for model in models:
                target = pretrained_model_in(model, "with_sequence_parallel")
                calls = ModelCalls(target, group, group.size, whole_batches=True)
                self._running.append(calls)
                look = undo.enter_context(over_ranks(model, calls))
                if target in self._counts_by_mask:
                    calls.counts_by_mask = self._counts_by_mask[target]
                    look = functools.partial(calls.watch, model)
                self._looks.append((calls, look))
            yield

    def _look_once(self) -> None:
        if self._running is None:
            raise ConfigError(
                "with_sequence_parallel: a step of the trainer was called outside train(), evaluate() and predict(), in which alone the model is over ranks"
            )
        while self._looks:
            calls, look = self._looks.pop()
            look()
            self._counts_by_mask[calls.model] = calls.counts_by_mask


def _smoothed(smoother, model_shifts, outputs, labels, shift_labels=False, **more):
    """The trainer knows a model that predicts the next token by its class's name, which FSDP2 and torch.compile change."""
    return smoother(outputs, labels, shift_labels=shift_labels or model_shifts, **more)
