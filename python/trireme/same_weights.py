"""Do the ranks that share a sample hold the same weights, to the bit? All are compared when a block begins, and a few values of a few at each call.

Ranks with other weights train on in silence, on a model that is none: an adapter drawn by each rank's own seed, gradients that
nobody summed before the optimizer's step. Parameters that are sharded (FSDP, ZeRO-3) or a rank's alone (experts) are not looked at.
"""

from __future__ import annotations

import weakref
from typing import Iterator, Optional, Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from .batch import checksum as checksum_of_bits
from .errors import ConfigError
from .sequence_group import SequenceGroup

_VALUES = 64  # of a watched parameter, spread over it
_WATCHED = 4  # trained parameters that each call looks at


def refuse_other_weights(model: torch.nn.Module, shared: SequenceGroup) -> None:
    """Collective, in a group of several ranks."""
    if shared.size == 1:
        return
    whole = _whole_parameters(model)
    device = _device_of(model, shared)
    count = torch.tensor(len(whole), device=device)
    if len({int(part) for part in shared.all_gather(count)}) > 1:
        raise ConfigError("trireme.parallelize: the model has other parameters on one rank than on another; expected the same on all")
    if not whole:
        return
    for rank, different in differences({name: checksum_of_bits(parameter).to(device) for name, parameter in whole.items()}, shared):
        raise ConfigError(
            f"trireme.parallelize: {_few(different)} of rank {rank} of the group differ from those of rank 0: ranks that share a sample hold "
            "the same weights. Load or draw them alike (one seed before the model and before an adapter is made), and before each "
            "optimizer.step() call trireme.sum_gradients, or wrap the model in DDP, FSDP or DeepSpeed over all ranks of the group"
        )


def differences(checksums: dict[str, torch.Tensor], shared: SequenceGroup) -> Iterator[tuple[int, list[str]]]:
    """Collective. The names whose checksums on a rank are not those of rank 0, of each rank that has such."""
    ranks = [part.tolist() for part in shared.all_gather(torch.stack(list(checksums.values())))]
    for rank, theirs in enumerate(ranks):
        if different := [name for name, first, other in zip(checksums, ranks[0], theirs) if first != other]:
            yield rank, different


class WatchedWeights:
    """What each call of the model adds to the exchange that it makes anyway: weights that drift apart are seen at the next call.

    model: once it is wrapped; None watches nothing.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None):
        trained = [] if model is None else [parameter for parameter in _whole_parameters(model).values() if parameter.requires_grad]
        chosen = sorted({(len(trained) - 1) * i // (_WATCHED - 1) for i in range(_WATCHED)}) if trained else []
        self._watched = [weakref.ref(trained[number]) for number in chosen]  # one that a wrapper replaces is not kept alive

    def checksum(self, device: torch.device) -> torch.Tensor:
        """An int64 scalar."""
        total = torch.zeros((), dtype=torch.int64, device=device)
        for number, watched in enumerate(self._watched, 1):
            # A wrapper that came later may have taken the values away.
            if (parameter := watched()) is not None and parameter.untyped_storage().nbytes() > 0:
                flat = parameter.detach().reshape(-1)
                few = flat[:: max(1, len(flat) // _VALUES)][:_VALUES]
                total = total + number * checksum_of_bits(few).to(device)
        return total

    @staticmethod
    def refuse_drift(ranks: Sequence[int]) -> None:
        if len(set(ranks)) > 1:
            raise ConfigError(
                "trireme.parallelize: the ranks' weights were the same and no longer are: before optimizer.step() each rank needs the gradients "
                "of all. Call trireme.sum_gradients(model.parameters(), group) (with a GradScaler before scaler.unscale_), or wrap the model in DDP, "
                "FSDP or DeepSpeed over all ranks of the group (and give averaged_over)"
            )


def _device_of(model: torch.nn.Module, shared: SequenceGroup) -> torch.device:
    """Of numbers that the group gathers; parameters may be kept where it has no backend."""
    device = next(model.parameters()).device
    if device.type in ("cpu", "meta") and dist.get_backend(shared.process_group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "meta" else device


def _whole_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # FSDP 2 leaves its root's parameters whole for a while after some forward passes.
    sharded = {id(parameter) for module in model.modules() if isinstance(module, FSDPModule) for parameter in module.parameters()}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if id(parameter) not in sharded
        and type(parameter.data) is torch.Tensor  # no DTensor, nor one whose values are packed
        and not hasattr(parameter, "ds_id")
        and parameter.is_contiguous()
        and getattr(parameter, "allreduce", True)  # DeepSpeed's experts, which are a rank's alone, say so
        and not parameter.is_meta
        and parameter.numel() > 0
    }


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
