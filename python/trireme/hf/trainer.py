"""Trainer, SFTTrainer, DPOTrainer over ranks that share each sample.

    batch [B, S], the same on a sequence group's ranks --Trainer's own code--> model (whole_batches) --> loss, values of each token [B, S]

The model is called with whole batches and answers as it would alone, so the loss, label smoothing, metrics, accumulation, checkpoints and
callbacks stay the trainer's own. To it, the ranks of a sequence group are as those of tensor parallelism: they hold the same batch.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional, TypeVar

import transformers

from ..errors import ConfigError
from ..model_calls import ModelCalls
from ..parallelize import over_ranks
from .parallelism_config import ParallelismConfig

SP_SIZE_VARIABLE = "PARALLELISM_CONFIG_SP_SIZE"
Trainer = TypeVar("Trainer", bound=type)


def with_sequence_parallel(trainer_class: Trainer, *, sp_size: Optional[int] = None, sp_ring: Optional[int] = None) -> Trainer:
    """``with_sequence_parallel(SFTTrainer)(model, args, ...)``: the trainer, with its signature, whose ranks share each sample.

    trainer_class: transformers.Trainer, or trl's SFTTrainer or DPOTrainer, or a class of yours that derives from one of them.
    sp_size: ranks that share a sample; all ranks if None. With ``args.parallelism_config`` (a trireme.hf.ParallelismConfig), or
        PARALLELISM_CONFIG_SP_SIZE in the environment, that one counts.
    sp_ring: of them, those of the ring, for more ranks than query heads (trireme.SequenceGroup).

    A batch is what one sequence group trains on: per_device_train_batch_size samples, of which each rank holds its tokens. Losses,
    gradients, gradient norm and logs are those of one process for each group. Logits are gathered whole, [B, S, V] on every rank,
    where something asks for them: compute_loss_func, label_smoothing_factor, compute_metrics.
    Raises ConfigError for what it refuses: another parallelism_config, use_liger_kernel, and what trireme.parallelize refuses.
    """
    if not issubclass(trainer_class, transformers.Trainer):
        raise ConfigError(f"with_sequence_parallel: got {trainer_class!r}, expected a class that derives from transformers.Trainer")
    own = {"_sp_size": sp_size, "_sp_ring": sp_ring, "__doc__": trainer_class.__doc__, "__module__": trainer_class.__module__}
    return type(f"SequenceParallel{trainer_class.__name__}", (_SequenceParallel, trainer_class), own)


class _SequenceParallel:
    _sp_size: Optional[int]
    _sp_ring: Optional[int]
    _counts_tokens = False
    _running: Optional[list[ModelCalls]] = None  # the model's, and its reference's, while they are over ranks
    _probed: tuple = ()  # models that were looked at for token mixing

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.use_liger_kernel:
            raise ConfigError(
                "with_sequence_parallel: got use_liger_kernel=True, expected False: its fused loss is taken over a shard's tokens alone. "
                "trireme.fused_loss(model) saves the same memory"
            )
        config = self.args.parallelism_config
        if config is None:
            sp_size = self._sp_size
            if sp_size is None and SP_SIZE_VARIABLE not in os.environ:
                sp_size = self.args.world_size
            self.args.parallelism_config = ParallelismConfig(sp_size=sp_size, sp_ring=self._sp_ring)
        elif not isinstance(config, ParallelismConfig):
            raise ConfigError(
                f"with_sequence_parallel: got args.parallelism_config of {type(config).__module__}.{type(config).__name__}, expected a "
                "trireme.hf.ParallelismConfig, or None"
            )
        super().create_accelerator_and_postprocess()

    def get_sp_size(self) -> int:
        return 1

    def get_tp_size(self) -> int:
        """Ranks with the same batch; a gathered count of tokens is of each batch once."""
        return super().get_tp_size() * (1 if self._counts_tokens else self.args.parallelism_config.sp_size)

    def _get_num_items_in_batch(self, *arguments, **keywords):
        self._counts_tokens = True
        try:
            return super()._get_num_items_in_batch(*arguments, **keywords)
        finally:
            self._counts_tokens = False

    def _inner_training_loop(self, *arguments, **keywords):
        with self._over_ranks():
            return super()._inner_training_loop(*arguments, **keywords)

    def evaluation_loop(self, *arguments, **keywords):
        with self._over_ranks():
            return super().evaluation_loop(*arguments, **keywords)

    def _precompute_ref_logps(self, *arguments, **keywords):
        with self._over_ranks():
            return super()._precompute_ref_logps(*arguments, **keywords)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        calls = self._running[0]
        calls.whole.logits_beside_loss = not prediction_loss_only
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        finally:
            calls.whole.logits_beside_loss = False

    @contextlib.contextmanager
    def _over_ranks(self) -> Iterator[None]:
        if self._running is not None:
            yield
            return
        config = self.args.parallelism_config
        group = config.sequence_group()
        models = [self.model] if getattr(self, "ref_model", None) is None else [self.model, self.ref_model]
        with contextlib.ExitStack() as undo:
            self._running = []
            undo.callback(setattr, self, "_running", None)
            undo.enter_context(config.gather_once(self.accelerator))
            for model in models:
                target = next(m for m in model.modules() if isinstance(m, transformers.PreTrainedModel))
                self._running.append(ModelCalls(target, group, group.size, whole_batches=True))
                # Wrappers (FSDP, ZeRO) are there when a trainer evaluates after it trained: then the model was probed before.
                undo.enter_context(over_ranks(model, self._running[-1], probe=not any(target is seen for seen in self._probed)))
            self._probed = tuple(calls.model for calls in self._running)
            yield
