"""One training step with Accelerate's context parallelism over FSDP2 (cp_backend "torch"), by its documented loop.

Its Ulysses backend over FSDP2 (pull request 4209) is not in a release: 1.15.0 takes sp_backend "deepspeed" alone.
"""

import torch
import torch.distributed as dist


def _step(model, batch, backward):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig

    accelerator = Accelerator(
        cpu=True,
        parallelism_config=ParallelismConfig(cp_size=dist.get_world_size()),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False),
    )
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    ids = batch["input_ids"].clone()
    positions = batch.get("position_ids", torch.arange(ids.shape[1]).repeat(ids.shape[0], 1)).clone()
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    buffers = [ids, positions, targets]
    with accelerator.maybe_context_parallel(buffers, [1, 1, 1], no_restore_buffers=set(buffers)):
        loss = model(input_ids=ids, position_ids=positions, shift_labels=targets, labels=targets, use_cache=False).loss
        if backward:
            accelerator.backward(loss)
    total = loss.detach().clone()
    dist.all_reduce(total)
    gradients = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()} if backward else {}
    return total.item() / dist.get_world_size(), gradients


def train_step(model, batch, _zero_stage):
    """(loss, gradients by name) of one micro-batch that every rank has whole; raises what Accelerate refuses."""
    return _step(model, batch, backward=True)


def evaluate(model, batch, _zero_stage):
    with torch.no_grad():
        return _step(model.eval(), batch, backward=False)[0]
