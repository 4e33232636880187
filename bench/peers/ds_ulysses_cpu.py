#!/usr/bin/env python3
"""HF Transformers on CPU ranks (gloo) that share each sample: by DeepSpeed Ulysses (UlyssesSPAttentionHF), or by the
Python package trireme in the same loop over the same DeepSpeed engine (--sequence trireme).

    OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node 2 ds_ulysses_cpu.py \\
        --model DIR --seq 8192 --steps 5 --dtype bf16 --zero 1 [--json OUT] [--dump FILE.safetensors]

With 1 rank it is DeepSpeed without sequence parallelism (register_with_transformers does nothing).
Ulysses' training loop is the one of DeepSpeed's ALST tutorial. The data are those of hf_single.py, in the same
order: the adapter plays sample 0 (of rank 0's loader), sample 1 (of rank 1's), ... one per micro-step.
"""
import argparse
import contextlib
import json
import logging
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
ap = argparse.ArgumentParser()
ap.add_argument("--model", required=True)
ap.add_argument("--sequence", default="ulysses", choices=["ulysses", "trireme"], help="who shares a sample among the ranks")
ap.add_argument("--seq", type=int, default=2048)
ap.add_argument("--batch", type=int, default=1)
ap.add_argument("--steps", type=int, default=5)
ap.add_argument("--warmup", type=int, default=1)
ap.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
ap.add_argument("--zero", type=int, default=1, choices=[0, 1, 2, 3])
ap.add_argument("--opt", default="torch", choices=["torch", "ds"], help="torch.optim.AdamW(fused) or DeepSpeed's CPU FusedAdam (JIT)")
ap.add_argument("--attn", default="sdpa")
ap.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "1")))
ap.add_argument("--pin", action="store_true", help="pin rank r to cores r*threads ..")
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--wd", type=float, default=0.01)
ap.add_argument("--clip", type=float, default=0.0)
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--checkpointing", action="store_true")
ap.add_argument("--json")
ap.add_argument("--dump", help="rank 0 writes loss, gathered logits and full grads of the first batch, then all stop")
ap.add_argument("--profile")
ap.add_argument("--local_rank", type=int, default=0)
a = ap.parse_args()
if a.pin:
    r = int(os.environ.get("LOCAL_RANK", 0))
    os.sched_setaffinity(0, range(r * a.threads, (r + 1) * a.threads))

import torch

torch.set_num_threads(a.threads)
import deepspeed
import deepspeed.comm as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter
from deepspeed.runtime.utils import move_to_device
from deepspeed.utils import groups, safe_get_full_grad
from deepspeed.utils import logger as ds_logger
from transformers import AutoModelForCausalLM
import torch.distributed.nn
from peer_data import Load, flops_fields, flops_per_step, tokens, versions

ds_logger.setLevel(logging.ERROR)
# Its shared-memory reduction is for inference only; it would be compiled here, and each rank would leave 66 MiB of
# /dev/shm behind.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
dist.init_distributed(dist_backend="gloo", dist_init_required=True)
rank, ws = dist.get_rank(), dist.get_world_size()
config = {
    "train_micro_batch_size_per_gpu": a.batch,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": a.clip,
    "zero_optimization": {"stage": a.zero},
    "steps_per_print": 10**9,
}
if a.dtype == "bf16":
    config["bf16"] = {"enabled": True}
if a.opt == "ds":
    config["optimizer"] = {"type": "AdamW", "params": {"lr": a.lr, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": a.wd}}

mpu = None
if a.sequence == "ulysses":
    config["sequence_parallel_size"] = ws
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=a.model, core_attn_implementation=a.attn, sequence_parallel_size=ws,
        micro_batch_size=a.batch, seq_length=a.seq, seq_length_is_variable=False)
model = AutoModelForCausalLM.from_pretrained(
    a.model, dtype=torch.bfloat16 if a.dtype == "bf16" else torch.float32, attn_implementation=a.attn)
cfg = model.config
cfg.use_cache = False
if a.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
kw = dict(model_parameters=model.parameters())
if a.opt == "torch":
    kw = dict(optimizer=torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=a.wd, fused=True))
engine, _, _, _ = deepspeed.initialize(config=config, model=model, mpu=mpu, **kw)
engine.train()


def sample_batch(step):
    """[a.batch, a.seq] whole samples of one micro-step."""
    rows = [torch.from_numpy(tokens(a.seed, step * a.batch + b, a.seq, cfg.vocab_size)) for b in range(a.batch)]
    ids = torch.stack(rows)
    pos = torch.arange(a.seq).unsqueeze(0).expand(ids.shape[0], -1).contiguous()
    return dict(input_ids=ids, position_ids=pos, labels=ids.clone())


def ulysses():
    """Shards of the micro-steps, and the loss of one, as DeepSpeed's tutorial has them."""
    if ws > 1:
        sp_group = groups._get_sequence_parallel_group()
        sp_ws, sp_rank = groups._get_sequence_parallel_world_size(), groups._get_sequence_parallel_rank()
    else:
        sp_group, sp_ws, sp_rank = dist.get_world_group(), 1, 0
    n = -(-a.steps // ws) * ws
    mine = [sample_batch(s) for s in range(rank, n, ws)]
    dl = torch.utils.data.DataLoader(mine, batch_size=1, collate_fn=lambda x: dict(x[0]))
    dl = UlyssesSPDataLoaderAdapter(dl, sp_rank=sp_rank, sp_group=sp_group, sp_world_size=sp_ws, device=engine.device)

    def forward_loss(batch):
        shift_labels = batch["shift_labels"]
        out = engine(**batch)
        loss = engine.module.loss_function(logits=out.logits, labels=None, shift_labels=shift_labels, vocab_size=cfg.vocab_size)
        if sp_ws > 1:
            losses = torch.distributed.nn.functional.all_gather(loss, group=sp_group)
            good = (shift_labels != -100).view(-1).sum()
            goods = torch.distributed.nn.functional.all_gather(good, group=sp_group)
            loss = sum(losses[r] * goods[r] for r in range(sp_ws)) / max(sum(goods), 1)
        return loss, out

    return dl, forward_loss


def trireme_shards():
    """The same with the package trireme: what its page, docs/huggingface.md, says."""
    import trireme

    group = torch.distributed.group.WORLD
    until_the_end.enter_context(trireme.parallelize(engine, group))

    def forward_loss(batch):
        targets = batch.pop("shift_labels")
        out = engine(**batch)
        return trireme.loss(out.logits, targets, group, averaged_over=ws), out

    return (trireme.shard(sample_batch(s), group) for s in range(a.steps)), forward_loss


until_the_end = contextlib.ExitStack()
dl, forward_loss = ulysses() if a.sequence == "ulysses" else trireme_shards()


def one_step():
    t0 = time.perf_counter()
    batch = move_to_device(next(dl), engine.device)
    t1 = time.perf_counter()
    loss, out = forward_loss(batch)
    del out
    t2 = time.perf_counter()
    engine.backward(loss)
    t3 = time.perf_counter()
    engine.step()
    t4 = time.perf_counter()
    return loss.item(), t4 - t0, (t1 - t0, t2 - t1, t3 - t2, t4 - t3)


if a.dump:
    batch = move_to_device(next(dl), engine.device)
    loss, out = forward_loss(batch)
    logits = out.logits.detach().float()
    parts = [torch.empty_like(logits) for _ in range(ws)]
    dist.all_gather(parts, logits.contiguous())
    engine.backward(loss)
    t = {"loss": loss.detach().float().reshape(1).clone(), "logits": torch.cat(parts, 1).contiguous()}
    for k, p in engine.module.named_parameters():
        t["grad." + k] = safe_get_full_grad(p).detach().float().clone()
    engine.step()
    if a.zero == 3:
        from deepspeed.utils import safe_get_full_fp32_param as full
    else:
        full = lambda p: p
    for k, p in engine.module.named_parameters():
        t["after." + k] = full(p).detach().float().clone()
    if rank == 0:
        from safetensors.torch import save_file
        save_file(t, a.dump, metadata={k: str(v) for k, v in {**vars(a), **versions(), "ranks": ws}.items()})
        print(json.dumps({"dump": a.dump, "loss": loss.item(), "tensors": len(t)}))
    dist.barrier()
    torch.distributed.destroy_process_group()
    sys.exit(0)

rss0 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
losses, times, parts = [], [], []
for s in range(a.steps):
    dist.barrier()
    if s == min(a.warmup, a.steps - 1):
        load = Load()
    if a.profile and s == a.steps - 1:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            l, dt, p = one_step()
        open(a.profile + f".rank{rank}", "w").write(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
    else:
        l, dt, p = one_step()
    losses.append(l), times.append(dt), parts.append(p)

# a step lasts as long as its slowest rank
box = [None] * ws
torch.distributed.all_gather_object(box, dict(times=times, parts=parts, rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                                              rss0=rss0, own=load.own(), losses=losses))
rep = load.report(own_cpu=sum(b["own"] for b in box))
if rank == 0:
    w = min(a.warmup, a.steps - 1)
    times = [max(b["times"][s] for b in box) for s in range(a.steps)]
    med = statistics.median(times[w:])
    work = flops_per_step(cfg, a.seq, a.batch)
    res = {"what": "ds_" + a.sequence, "model": a.model, "dtype": a.dtype, "attn": a.attn, "seq": a.seq, "batch": a.batch, "ranks": ws,
           "threads": a.threads, "zero": a.zero, "opt": a.opt, "pin": a.pin, "checkpointing": a.checkpointing,
           "step_s": [round(t, 4) for t in times], "median_step_s": round(med, 4),
           "data_fwd_bwd_opt_s": [round(statistics.median(x), 4) for x in zip(*parts[w:])],
           "tokens_per_s": round(a.seq * a.batch / med, 1),
           **flops_fields(work, med), "losses": [round(x, 6) for x in losses],
           "rss_before_mib": [round(b["rss0"]) for b in box], "peak_rss_mib": [round(b["rss"]) for b in box],
           "optimizer": type(engine.optimizer).__name__, "load": rep, "versions": versions()}
    print(json.dumps(res))
    if a.json:
        open(a.json, "w").write(json.dumps(res, indent=1))
dist.barrier()
torch.distributed.destroy_process_group()
