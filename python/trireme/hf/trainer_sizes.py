"""What a trainer counts by ranks, where its ranks share each sample: its sizes, its batches and its samples are those of data ranks."""

from __future__ import annotations

import os
import sys
from typing import Optional

from transformers.trainer_pt_utils import BatchRebalanceSampler

from ..errors import ConfigError
from ..long_context_data_collator import COLUMNS, LongContextDataCollator
from .dispatched_batches import DispatchedBatches
from .parallelism_config import SP_SIZE_VARIABLE, ParallelismConfig


class TrainerSizes:
    """Before a class of transformers.Trainer among the bases."""

    _sp_size: Optional[int]
    _sp_ring: Optional[int]
    _given_config: object  # args.parallelism_config as the user gave it
    _counts_tokens = False

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.use_liger_kernel:
            raise ConfigError(
                "with_sequence_parallel: got use_liger_kernel=True, expected False: its fused loss is taken over a shard's tokens alone. "
                "trireme.fused_loss(model) saves the same memory"
            )
        if self.args.neftune_noise_alpha:
            raise ConfigError(
                f"with_sequence_parallel: got neftune_noise_alpha={self.args.neftune_noise_alpha}, expected None: its noise is drawn by the "
                "tokens of a call, and these are a shard's"
            )
        if self.args.n_gpu > 1:
            raise ConfigError(
                f"with_sequence_parallel: got one process for {self.args.n_gpu} GPUs, expected one process a GPU: start the script by "
                f"torchrun --nproc_per_node {self.args.n_gpu}"
            )
        if self.args.parallelism_config is None:
            self.args.parallelism_config = self._given_config  # SFTTrainer copies arguments that are not its own, without it
        config = self.args.parallelism_config
        made = getattr(self.args, "_trireme_made_config", None)  # for another trainer of these arguments, or an earlier trial of a search
        if config is None or config is made:
            sp_size = self._sp_size
            if sp_size is None and SP_SIZE_VARIABLE not in os.environ:
                sp_size = self.args.world_size
                if made is None:
                    self._tell_that_all_share(sp_size)
            self.args.parallelism_config = config = made = ParallelismConfig(sp_size=sp_size, sp_ring=self._sp_ring)
        elif not isinstance(config, ParallelismConfig):
            raise ConfigError(
                f"with_sequence_parallel: got args.parallelism_config of {type(config).__module__}.{type(config).__name__}, expected a "
                "trireme.hf.ParallelismConfig, or None"
            )
        elif (self._sp_size or config.sp_size, self._sp_ring or config.sp_ring) != (config.sp_size, config.sp_ring):
            raise ConfigError(
                f"with_sequence_parallel: got sp_size={self._sp_size}, sp_ring={self._sp_ring} beside args.parallelism_config with "
                f"sp_size={config.sp_size}, sp_ring={config.sp_ring}: give them in one of the two"
            )
        super().create_accelerator_and_postprocess()
        self._take_what_the_accelerator_has()
        self.args._trireme_made_config = self.args.parallelism_config if config is made else None

    def _tell_that_all_share(self, ranks: int) -> None:
        if ranks > 1 and self.args.process_index == 0:
            print(
                f"trireme: all {ranks} processes share each sample, so a batch has {self.args.per_device_train_batch_size} in all; "
                f"with_sequence_parallel(..., sp_size=N) or {SP_SIZE_VARIABLE} (accelerate launch --use_parallelism_config) says otherwise",
                file=sys.stderr,
            )

    def _take_what_the_accelerator_has(self) -> None:
        """Accelerate keeps the first configuration that it gets, until a trainer's arguments are made again."""
        config, held = self.args.parallelism_config, self.accelerator.parallelism_config
        if held is config:
            return
        config._fill_data_ranks()
        if isinstance(held, ParallelismConfig) and (held._sizes, held.sp_ring) == (config._sizes, config.sp_ring):
            self.args.parallelism_config = held  # whose groups there are
        elif config.total_size > 1:
            raise ConfigError(
                f"with_sequence_parallel: got {_words(config)}, but an Accelerator with {_words(held)} was made after this trainer's arguments, "
                "and Accelerate gives all of a process the first one's: make the arguments after the other trainer or Accelerator, or give "
                "both the same sizes"
            )

    def _set_signature_columns_if_needed(self) -> None:
        """A trainer drops columns that the model's forward does not take: what tells documents apart, before the collator sees it."""
        super()._set_signature_columns_if_needed()
        if isinstance(getattr(self, "data_collator", None), LongContextDataCollator):
            self._signature_columns = list(dict.fromkeys([*self._signature_columns, *sorted(COLUMNS)]))

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

    def _get_train_sampler(self, *arguments, **keywords):
        sampler = super()._get_train_sampler(*arguments, **keywords)
        config = self.args.parallelism_config
        if not isinstance(sampler, BatchRebalanceSampler) or config.sp_size == 1:
            return sampler
        if self.args.accelerator_config.dispatch_batches and config.data_parallel_size > 1:
            raise ConfigError(
                "with_sequence_parallel: got train_sampling_strategy='batch_rebalance' together with dispatch_batches=True, with which "
                "process 0 would read its own batches alone: leave one of them out"
            )
        return BatchRebalanceSampler(  # theirs is by processes
            lengths=sampler.lengths,
            effective_batch_size=sampler.effective_batch_size // config.sp_size,
            dp_size=config.data_parallel_size,
            grad_accum=sampler.grad_accum,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            rank=config.data_rank,
            drop_last=sampler.drop_last,
        )

    def floating_point_ops(self, inputs):
        """This rank's; the trainer sums them over all processes."""
        return super().floating_point_ops(inputs) // self.args.parallelism_config.sp_size

    def num_examples(self, dataloader):
        return super().num_examples(source_of(dataloader))


def source_of(dataloader):
    """Of dispatched batches the loader that process 0 reads, which knows the samples."""
    batches = getattr(dataloader, "dataset", None)
    return batches.source if isinstance(batches, DispatchedBatches) else dataloader


def _words(config: object) -> str:
    sizes = getattr(config, "_sizes", {})
    ring = getattr(config, "sp_ring", 1)
    return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) + f" (ring {ring})" * (ring > 1) or "no sizes"
