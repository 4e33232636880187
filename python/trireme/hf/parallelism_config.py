"""Accelerate's ParallelismConfig with ranks that share a sample by Trireme.

    world = dp_replicate x dp_shard x sp, sp innermost: rank = data_rank x sp_size + sequence_rank

The ranks of a sequence group get the same batches; gradients are averaged over all ranks, be it by DDP, by FSDP2
(parameters are sharded over dp_shard x sp) or by DeepSpeed's engine (to which every rank is a data rank). The method is
Ulysses' (arXiv 2309.14509).

Accelerate knows sequence ranks only as DeepSpeed's. What it does by the number of processes, and must do by the number
of data ranks, is replaced on the one Accelerator that this configuration is given to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from typing import Any, Optional

import accelerate
import torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import DeviceMesh

from ..errors import ConfigError
from ..sequence_group import SequenceGroup
from . import data_rank_loader, data_rank_scheduler
from .gather_once import gather_once

TESTED_ACCELERATE = "1.15."
SP_SIZE_VARIABLE = "PARALLELISM_CONFIG_SP_SIZE"
SP_RING_VARIABLE = "PARALLELISM_CONFIG_SP_RING"


@dataclasses.dataclass
class ParallelismConfig(accelerate.ParallelismConfig):
    """``Accelerator(parallelism_config=trireme.hf.ParallelismConfig(sp_size=4))``

    sp_size: ranks that share each sample, neighbours; 1 for none. Without it PARALLELISM_CONFIG_SP_SIZE, which ``accelerate launch``
        sets from its configuration.
    sp_ring: ring ranks among them, for more ranks than query heads (:class:`trireme.SequenceGroup`); a divisor of
        sp_size. Without it PARALLELISM_CONFIG_SP_RING, or 1.
    sp_backend: "trireme". The variable PARALLELISM_CONFIG_SP_BACKEND is not read: the command line of ``accelerate
        launch`` always sets it to "deepspeed".
    dp_replicate_size, dp_shard_size: as in Accelerate. Where neither is set, all ranks that sp_size leaves are data
        ranks: dp_shard under FSDP2, else dp_replicate.

    Raises ConfigError: a plain Trainer with sp, no sp_size beside data ranks that leave it open, sp together with tp or cp, FSDP 1, sizes whose product is
    not the number of processes, a ring that does not divide sp_size, another version of Accelerate than those that it was tested with.
    """

    sp_ring: Optional[int] = None

    def __post_init__(self):
        if not accelerate.__version__.startswith(TESTED_ACCELERATE):
            raise ConfigError(f"ParallelismConfig: got accelerate {accelerate.__version__}, expected {TESTED_ACCELERATE}x")
        if self.sp_backend not in (None, "trireme"):
            raise ConfigError(
                f"sp_backend: got {self.sp_backend!r}, expected 'trireme'; accelerate.ParallelismConfig has the others"
            )
        if self.sp_handler is not None:
            raise ConfigError("sp_handler: it configures DeepSpeed's sequence parallelism: leave it out")
        self._says_size = self.sp_size is not None or SP_SIZE_VARIABLE in os.environ
        sequence_ranks = _size("sp_size", self.sp_size, SP_SIZE_VARIABLE)
        self.sp_ring = _size("sp_ring", self.sp_ring, SP_RING_VARIABLE)
        if sequence_ranks % self.sp_ring:
            raise ConfigError(f"sp_ring: got {self.sp_ring} for sp_size {sequence_ranks}, expected a divisor of it")
        # Theirs checks the other sizes; a sequence size it would take for DeepSpeed's.
        self.sp_size, self.sp_backend = 1, "deepspeed"
        super().__post_init__()
        self.sp_backend = "trireme"
        self._set_size("sp", sequence_ranks)
        for name in ("cp", "tp"):
            size = getattr(self, f"{name}_size")
            if sequence_ranks > 1 and size > 1:
                raise ConfigError(f"sp_size {sequence_ranks} together with {name}_size {size}: set {name}_size to 1")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """Over which FSDP2 shards parameters and averages gradients."""
        return super().dp_shard_cp_dim_names + ["sp"] * self.sp_enabled

    @property
    def dp_cp_dim_names(self) -> list[str]:
        return super().dp_cp_dim_names + ["sp"] * self.sp_enabled

    @property
    def data_rank(self) -> int:
        """Of the batches that this rank gets, 0 to data_parallel_size - 1."""
        return (dist.get_rank() if dist.is_initialized() else 0) // self.sp_size

    def sequence_group(self) -> SequenceGroup:
        """The ranks that share this rank's samples. After ``Accelerator(parallelism_config=...)``; not collective."""
        if not self.sp_enabled:
            return SequenceGroup.alone()
        return SequenceGroup(self._mesh_group("sp"), ring=self.sp_ring)

    def data_group(self) -> SequenceGroup:
        """The ranks that have the rank of this one in their sequence groups: together they have each sample once."""
        if not self.dp_dim_names:
            return SequenceGroup.alone()
        return SequenceGroup(self._mesh_group("dp"))

    def gather_once(self, accelerator: accelerate.Accelerator) -> contextlib.AbstractContextManager[None]:
        """In the block, ``accelerator.gather``, ``gather_for_metrics`` and ``reduce`` count each sample once.

        Outside it they take every process, so that each sample is there sp_size times. Not collective.
        """
        return gather_once(accelerator, self.data_group())

    def build_device_mesh(self, device_type: str) -> Optional[DeviceMesh]:
        self._fill_data_ranks()
        return super().build_device_mesh(device_type)

    def _mesh_group(self, name: str) -> dist.ProcessGroup:
        if self.device_mesh is None:
            raise ConfigError("ParallelismConfig has no groups yet: make Accelerator(parallelism_config=config) first")
        return self.device_mesh[name].get_group()

    def _fill_data_ranks(self) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        others = self.non_data_parallel_size
        if not self._says_size and self.total_size != world:
            raise ConfigError(
                f"ParallelismConfig: got no sp_size for {world} processes, and {SP_SIZE_VARIABLE} is not set (accelerate launch sets it with "
                "--use_parallelism_config, or by a parallelism_config of its file): give the number of ranks that share each sample, 1 for none"
            )
        if world % others:
            raise ConfigError(f"sp_size: got {self.sp_size} for {world} processes, expected a divisor of their number")
        if self.data_parallel_size == 1:
            self._set_size("dp_shard" if AcceleratorState().is_fsdp2 else "dp_replicate", world // others)
        if self.total_size != world:
            raise ConfigError(
                f"ParallelismConfig: dp_replicate_size {self.dp_replicate_size} x dp_shard_size {self.dp_shard_size} x "
                f"sp_size {self.sp_size} is {self.total_size}, expected the number of processes, {world}; without "
                "dp_replicate_size and dp_shard_size they are filled in"
            )

    def _validate_accelerator(self, accelerator: accelerate.Accelerator) -> None:
        """Accelerate calls it at the end of making an Accelerator: where this configuration meets it."""
        if not self.sp_enabled:
            plain = accelerator.distributed_type == DistributedType.MULTI_CPU and self.dp_replicate_size == self.total_size
            if not plain:  # what Accelerate refuses on CPUs, with nothing to refuse
                super()._validate_accelerator(accelerator)
            return
        _refuse_plain_trainer(self.sp_size)
        self._refuse(accelerator)
        accelerator.prepare_data_loader = functools.partial(data_rank_loader.prepare_data_loader, accelerator, self)
        accelerator.prepare_scheduler = functools.partial(data_rank_scheduler.prepare_scheduler, accelerator, self)
        accelerator._prepare_deepspeed = functools.partial(self._prepare_deepspeed, accelerator)

    def _refuse(self, accelerator: accelerate.Accelerator) -> None:
        kind = accelerator.distributed_type
        if kind == DistributedType.DEEPSPEED:
            theirs = accelerator.state.deepspeed_plugin.deepspeed_config
            for name, size in (
                ("sequence_parallel_size", theirs.get("sequence_parallel_size", 1)),
                ("tensor_parallel.autotp_size", theirs.get("tensor_parallel", {}).get("autotp_size", 1)),
            ):
                if size > 1:
                    raise ConfigError(f"sp_size {self.sp_size} together with {name} {size} of DeepSpeed's configuration: leave that out")
        elif kind == DistributedType.FSDP and not accelerator.is_fsdp2:
            raise ConfigError("ParallelismConfig: sp_size under FSDP 1 is refused: set fsdp_version to 2")
        elif not accelerator.is_fsdp2 and not accelerator.multi_device and kind != DistributedType.MULTI_CPU:
            raise ConfigError(
                f"ParallelismConfig: sp_size under {kind} is refused; expected DDP, FSDP 2 or DeepSpeed (on CPUs DDP is "
                "Accelerator(cpu=True, ...))"
            )
        elif not accelerator.is_fsdp2 and self.dp_shard_enabled:
            raise ConfigError(f"dp_shard_size: got {self.dp_shard_size} without FSDP 2; DDP shards nothing: set dp_replicate_size")

    def _prepare_deepspeed(self, accelerator: accelerate.Accelerator, *objects: Any) -> tuple:
        """Theirs, as without a configuration: to DeepSpeed's engine every rank is a data rank."""
        if accelerator.split_batches:
            theirs = accelerator.state.deepspeed_plugin.deepspeed_config
            if theirs.get("train_micro_batch_size_per_gpu", "auto") == "auto":
                raise ConfigError(
                    'split_batches: got train_micro_batch_size_per_gpu "auto" in DeepSpeed\'s configuration, which Accelerate takes '
                    "for a batch over all processes; expected a number: the loader's batch_size over the data ranks"
                )
        else:
            objects = [data_rank_scheduler.with_total_steps_of_ranks(item, self.sp_size) for item in objects]
        accelerator.state.parallelism_config = None
        try:
            prepared = type(accelerator)._prepare_deepspeed(accelerator, *objects)
        finally:
            accelerator.state.parallelism_config = self
        for item in prepared:
            data_rank_scheduler.step_by_data_ranks(item, self.data_parallel_size)
        return prepared


def _refuse_plain_trainer(sp_size: int) -> None:
    """By who is making the Accelerator. A Trainer's own code takes sp ranks for DeepSpeed's, and would multiply loss and gradients by their number."""
    transformers = sys.modules.get("transformers.trainer")
    frame = sys._getframe() if transformers is not None else None
    while frame is not None:
        maker = frame.f_locals.get("self")
        if isinstance(maker, transformers.Trainer):
            if getattr(maker, "trireme_shares_samples", False):
                return
            name = type(maker).__name__
            raise ConfigError(
                f"ParallelismConfig: got sp_size {sp_size} with a plain {name} (by its arguments, or by an Accelerator that was made after them), which "
                f"would share nothing; expected trireme.hf.with_sequence_parallel({name})(model, args, ...)"
            )
        frame = frame.f_back


def _size(name: str, given: Optional[int], variable: str) -> int:
    size = os.environ.get(variable, "1") if given is None else given
    if str(size).strip().isdigit() and int(size) > 0:
        return int(size)
    raise ConfigError(f"{name if given is not None else variable}: got {size!r}, expected a whole number from 1 on")
