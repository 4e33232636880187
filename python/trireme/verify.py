"""Is it right on my model? A model's loss and gradients over P ranks beside the model alone, on the user's own batch.

    every rank     shard(batch), parallelize(model): loss, gradients, summed over the ranks
    rank 0 alone   model(**batch) as it was given: its own loss, its own attention; then compared, and told to all (model_alone.py)

The model alone is transformers' own code, with which Trireme's attention and loss share none. It runs on rank 0 only:
other ranks could but repeat it, in the memory and the cores that ranks of one machine share.
"""

from __future__ import annotations

import zlib
from typing import Any, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from .batch import checksum, restarts, shard
from .errors import ConfigError
from .gated_delta_net import delta_nets_in
from .image_batches import has_images
from .loss import loss as loss_of_shards
from .model_alone import beside_the_model_alone, dtype_of, gradients_of
from .model_in_use import pretrained_model_in, router_coefficient
from .parallelize import parallelize
from .peft_adapters import tunes_prompts
from .same_weights import differences
from .sequence_group import Group, SequenceGroup, sequence_group
from .verify_result import GradientError, VerifyResult

OF_THEIR_OWN_TOKEN = ("ForMaskedLM", "ForTokenClassification")  # losses of transformers whose labels are not shifted


def verify(
    model: torch.nn.Module,
    batch: Mapping[str, Any],
    group: Group = None,
    *,
    tolerance: Optional[float] = None,
    loss_tolerance: Optional[float] = None,
) -> VerifyResult:
    """The model over the ranks of ``group`` beside itself alone on one batch. Collective; every rank gets the result.

    model: as :func:`parallelize` takes it, not yet wrapped by DDP, FSDP or DeepSpeed, with the same weights on all ranks.
    batch: whole, the same on all ranks, on the model's device: ``input_ids`` [B, S], ``labels`` [B, S] as transformers
        takes them, and what else the model's forward takes along the tokens. Rank 0 needs the memory to run it alone,
        and twice that of the gradients.
    tolerance: of each gradient's largest entry, and of the gradient norm. None: 1e-4 in fp32 and fp64. bf16 and fp16 round
        each operation, and sums in another order round otherwise: 32 times the spacing of their numbers at 1 passes,
        0.25 and 0.03, which shows gross errors only, and a router near a tie may choose another expert beyond it. For a
        sharp answer give ``copy.deepcopy(model).float()``.
    loss_tolerance: of the loss. None: 5e-6, or the spacing once.

    The model keeps its weights, its gradients, its mode and the random numbers to come. The other ranks wait for rank 0
    within the group's timeout. Raises ConfigError for what parallelize refuses, for ranks whose weights or batches
    differ, and for dropout in training mode: two runs would drop other values.
    """
    shared = sequence_group(group)
    inputs = _check(model, batch, shared)
    names, parameters = zip(*((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad))
    device = parameters[0].device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        loss, gradients = _over_ranks(model, inputs, parameters, shared)
        norm, reference_loss, reference_norm, *rows = beside_the_model_alone(model, inputs, parameters, shared, gradients)
    dtype = dtype_of(parameters)
    spacing = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    errors = [GradientError(name, error, largest) for name, error, largest in zip(names, rows[::2], rows[1::2])]
    samples, tokens = inputs["labels"].shape
    return VerifyResult(
        loss=loss.item(),
        reference_loss=reference_loss,
        gradient_norm=norm,
        reference_gradient_norm=reference_norm,
        gradients=sorted(errors, key=lambda row: -row.error),
        tolerance=max(1e-4, 32 * spacing) if tolerance is None else tolerance,
        loss_tolerance=max(5e-6, spacing) if loss_tolerance is None else loss_tolerance,
        dtype=dtype,
        ranks=shared.size,
        batch=samples,
        sequence_tokens=tokens,
    )


def _check(model: torch.nn.Module, batch: Mapping[str, Any], shared: SequenceGroup) -> dict[str, Any]:
    labels: Any = batch.get("labels")
    if not torch.is_tensor(labels) or labels.dim() != 2:
        raise ConfigError(f"trireme.verify: got a batch of {sorted(batch)}, expected one with labels [B, S]: it compares a loss")
    if not (labels[:, 1:] != -100).any():
        raise ConfigError("trireme.verify: no token of the batch has a target: every label is -100")
    wrappers = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")
    parts = [name for name, parameter in model.named_parameters() if hasattr(parameter, "placements") or hasattr(parameter, "ds_id")]
    if parts or any(type(module).__name__ in wrappers for module in model.modules()):
        raise ConfigError(
            "trireme.verify: got a model that DDP, FSDP or DeepSpeed has wrapped, which no rank can run alone; verify it before it is wrapped"
        )
    if tunes_prompts(model):
        raise ConfigError(
            "trireme.verify: got prompt tuning, whose tokens come before the whole sample, and verify cuts it into shards: verify the model before "
            "get_peft_model, then train it with whole batches"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("trireme.verify: no parameter of the model wants a gradient, so there is nothing to compare")
    if has_images(batch):
        raise ConfigError("trireme.verify: got images, which are not shared along the sequence: give a batch of text")
    positions = batch.get("position_ids")
    if next(delta_nets_in(model), None) and torch.is_tensor(positions) and restarts(positions).any():
        raise ConfigError(
            "trireme.verify: got packed documents, which transformers alone lets see each other in Gated DeltaNet, so that there is nothing to compare "
            "with: give a batch without position_ids that restart"
        )
    tensors = {f"batch[{name!r}]": value for name, value in batch.items() if torch.is_tensor(value)}
    _refuse_difference({**tensors, **dict(model.named_parameters())}, shared)
    return dict(batch)


def _refuse_difference(tensors: dict[str, torch.Tensor], shared: SequenceGroup) -> None:
    """Collective. By a checksum of each tensor's bits."""
    shapes = zlib.crc32(repr([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]).encode())
    device = next(iter(tensors.values())).device
    if len({int(part) for part in shared.all_gather(torch.tensor(shapes, device=device))}) > 1:
        raise ConfigError("trireme.verify: names, shapes or dtypes of the batch or the weights differ between ranks; expected the same")
    for rank, different in differences({name: checksum(tensor).to(device) for name, tensor in tensors.items()}, shared):
        raise ConfigError(
            f"trireme.verify: {different[0]} of rank {rank} is not that of rank 0; expected the same weights and the same whole "
            "batch on every rank that shares a sample"
        )


def _over_ranks(
    model: torch.nn.Module, inputs: dict[str, Any], parameters: Sequence[torch.nn.Parameter], shared: SequenceGroup
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    whole = dict(inputs)
    target = pretrained_model_in(model, "trireme.verify")
    if getattr(target, "loss_type", None) in OF_THEIR_OWN_TOKEN:
        whole["shift_labels"] = whole.pop("labels")
    part = shard(whole, shared)
    targets, num_targets = part.pop("shift_labels"), part.pop("num_items_in_batch", None)
    with parallelize(model, shared):
        before = _random_states(parameters[0].device)
        output = model(**part)
        if getattr(output, "logits", None) is None:
            raise ConfigError(
                f"trireme.verify: {type(target).__name__} gives no logits, and verify compares a loss: give the model with its head "
                "(of a LlamaModel, LlamaForCausalLM)"
            )
        loss = loss_of_shards(output.logits, targets, shared, num_targets=num_targets)
        if getattr(output, "aux_loss", None) is not None:
            loss = loss + router_coefficient(target) * output.aux_loss
        drew = [not torch.equal(*states) for states in zip(before, _random_states(parameters[0].device))]
        if shared.all_sum(torch.tensor(any(drew), device=loss.device).int()) > 0:
            dropouts = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)}
            active = [name for name, module in dropouts.items() if module.training and module.p > 0]
            raise ConfigError(
                f"trireme.verify: the model draws random numbers ({', '.join(active[:3]) or 'dropout, or noise of a router'}), and two runs "
                "would draw others: set that to 0, or call model.eval() before"
            )
        gradients = gradients_of(loss, parameters)
    for gradient in gradients if shared.size > 1 else []:
        dist.all_reduce(gradient, group=shared.process_group)
    return loss, gradients


def _random_states(device: torch.device) -> list[torch.Tensor]:
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
