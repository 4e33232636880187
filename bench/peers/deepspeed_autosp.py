"""One training step with AutoSP, DeepSpeed's compiler pass, by its documented loop: whole batches in, labels included.

    whole batch  --prepare_autosp_inputs-->  engine, compiled with the pass "autosp"  -->  this rank's loss, gradients

The loss of all ranks is the mean of theirs, as its gradients are averaged.
"""

import torch
import torch.distributed as dist
import torch._functorch.partitioners as partitioners
from deepspeed_alst import engine_of, gradients_of

SOLVE_MIN_CUT = partitioners.solve_min_cut


def forward(model, batch, zero_stage):
    from deepspeed.compile.passes.sp_compile import prepare_autosp_inputs

    torch._dynamo.reset()
    partitioners.solve_min_cut = SOLVE_MIN_CUT  # it replaces this by its source, which a second engine would not find
    torch._dynamo.config.capture_dynamic_output_shape_ops = torch._dynamo.config.capture_scalar_outputs = True
    options = {"sequence_parallel_size": dist.get_world_size(), "compile": {"deepcompile": True, "passes": ["autosp"]}}
    engine = engine_of(model, zero_stage, **options)
    engine.compile(backend="inductor")
    ids = batch["input_ids"]
    positions = batch.get("position_ids", torch.arange(ids.shape[1]).repeat(ids.shape[0], 1))
    # Without a mask of [B, S] its pass over transformers' causal mask fails.
    mask = batch.get("attention_mask", torch.ones_like(ids))
    ids, labels, positions, mask = prepare_autosp_inputs(ids.clone(), batch["labels"].clone(), positions.clone(), mask.clone())
    loss = engine(input_ids=ids, labels=labels, position_ids=positions, attention_mask=mask, use_cache=False).loss
    return engine, loss


def of_all_ranks(loss):
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train_step(model, batch, zero_stage):
    """(loss, gradients by name) of one micro-batch that every rank has whole; raises what AutoSP refuses."""
    engine, loss = forward(model, batch, zero_stage)
    engine.backward(loss)
    return of_all_ranks(loss), gradients_of(engine)


def evaluate(model, batch, zero_stage):
    with torch.no_grad():
        return of_all_ranks(forward(model.eval(), batch, zero_stage)[1])
