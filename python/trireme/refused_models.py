"""Models, and wrappers around them, that trireme.parallelize refuses by what they hold; by what they compute, token_mixing.py does."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .errors import ConfigError
from .model_in_use import pretrained_models_in
from .peft_adapters import adapters_in
from .sequence_group import SequenceGroup


def refuse_other_models(model: torch.nn.Module, target: torch.nn.Module, whole_batches: bool) -> None:
    """Beside ``target``. In whole batches a frozen one, a teacher, runs as it is, on all tokens; ranks would share nothing of a trained one."""
    inside = set(target.modules())
    for name, other in pretrained_models_in(model).items():
        if other in inside or (whole_batches and not any(parameter.requires_grad for parameter in other.parameters())):
            continue
        raise ConfigError(
            f"trireme.parallelize: got {name} ({type(other).__name__}) beside the {type(target).__name__} that the ranks share"
            + (", and its parameters are trained" if whole_batches else ": it would see this rank's shard alone")
            + ". It is refused; expected one model of transformers, or in whole batches others that are frozen: open a block for each of them"
        )


def refuse_attention_of_the_callers(target: torch.nn.Module) -> None:
    """One that was registered computes what plain attention does not, or nobody would have made it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    chosen = target.config.get_text_config()._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get(chosen)
    function = getattr(function, "func", function)
    if function is not None and not function.__module__.startswith("transformers."):
        raise ConfigError(
            f"trireme.parallelize: the model's attention is {chosen!r}, of {function.__module__}, which Trireme's would replace: choose one of "
            "transformers (model.set_attn_implementation('sdpa')) if it computes plain attention"
        )


def refuse_unsaid_average(model: torch.nn.Module, shared: SequenceGroup, what: str) -> None:
    """Under a wrapper that averages over ranks of the group, gradients would be divided by their number."""
    own = set(dist.get_process_group_ranks(shared.process_group))
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = dist.get_process_group_ranks(module.process_group)
        elif isinstance(module, FSDPModule):
            ranks = next((p.device_mesh.mesh.flatten().tolist() for p in module.parameters() if isinstance(p, DTensor)), [])
        elif any(base.__name__ == "DeepSpeedEngine" for base in type(module).__mro__) and module.gradient_average:
            ranks = dist.get_process_group_ranks(module.seq_data_parallel_group)
        else:
            continue
        if len(averaged := own & set(ranks)) > 1:
            raise ConfigError(
                f"trireme.parallelize: got averaged_over=1 with {what}, and {type(module).__name__} averages gradients over {len(averaged)} ranks of "
                f"the group; expected averaged_over={len(averaged)}"
            )


def refuse_head_of_its_own(model: torch.nn.Module, target: torch.nn.Module) -> None:
    """Each rank has the whole gradient of what follows the model, and only its tokens' of the model; prompts of PEFT come before it."""
    known = {id(parameter) for parameter in target.parameters()}
    for adapted, _adapters in adapters_in(model):
        known.update(id(parameter) for parameter in adapted.parameters())
    outside = [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in known]
    if outside:
        raise ConfigError(
            f"trireme.parallelize: got {outside[0]}, a trained parameter outside the {type(target).__name__}, with whole_batches=True and "
            "averaged_over=1: every rank has its whole gradient, and a sum over ranks would count it several times. Average gradients over the group "
            "and give averaged_over, as under DDP, or give parallelize the inner model, and divide the head's part of the loss by the group's size"
        )
