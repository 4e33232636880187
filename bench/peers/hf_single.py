#!/usr/bin/env python3
"""Plain Hugging Face Transformers + AdamW, one process: the reference for loss and gradient parity.

    python hf_single.py --model DIR --seq 2048 --steps 5 --dtype bf16 --threads 2 [--json OUT]
    python hf_single.py --model DIR --seq 128 --dump FILE.safetensors   # fp32 logits, loss, grads
    python hf_single.py --model DIR --adapter LORA_DIR --make-adapter 16   # a LoRA adapter of all projections
    python hf_single.py --model DIR --adapter LORA_DIR --seq 2048 ...      # trains it, by PEFT

dtype: fp32; bf16 (bf16 weights, fp32 master weights and AdamW states: what DeepSpeed's bf16 does);
bf16_pure (bf16 everything); autocast (fp32 weights, bf16 matmuls).
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
ap = argparse.ArgumentParser()
ap.add_argument("--model", required=True)
ap.add_argument("--seq", type=int, default=2048)
ap.add_argument("--batch", type=int, default=1)
ap.add_argument("--steps", type=int, default=5)
ap.add_argument("--warmup", type=int, default=1, help="steps left out of the medians")
ap.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "bf16_pure", "autocast"])
ap.add_argument("--attn", choices=["sdpa", "eager"], help="sdpa, but eager of a Gemma 2, whose scores sdpa cannot cap")
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--wd", type=float, default=0.01)
ap.add_argument("--clip", type=float, default=0.0)
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--checkpointing", action="store_true")
ap.add_argument("--adapter", help="folder of a LoRA adapter, which is trained in place of the model")
ap.add_argument("--make-adapter", type=int, help="write a fresh one of this rank to --adapter; no training")
ap.add_argument("--json")
ap.add_argument("--dump", help="write fp32 logits, loss, all grads (and weights after one AdamW step); no training")
ap.add_argument("--no-logits", action="store_true", help="leave logits out of the dump")
ap.add_argument("--profile", help="write a torch profiler table of one step here")
a = ap.parse_args()
if a.device == "cpu":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch

torch.set_num_threads(a.threads)
from transformers import AutoConfig, AutoModelForCausalLM
from peer_data import Load, flops_fields, flops_per_step, tokens, versions

load_dtype = {"fp32": torch.float32, "autocast": torch.float32}.get(a.dtype, torch.bfloat16)
if a.dump:
    load_dtype = torch.float32
attn = a.attn or ("eager" if AutoConfig.from_pretrained(a.model).model_type == "gemma2" else "sdpa")
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=load_dtype, attn_implementation=attn).to(a.device)
if a.make_adapter:
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(a.seed)
    get_peft_model(model, LoraConfig(r=a.make_adapter, lora_alpha=2 * a.make_adapter, target_modules="all-linear", lora_dropout=0.0,
                                     task_type="CAUSAL_LM")).save_pretrained(a.adapter)
    sys.exit(0)
if a.adapter:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, a.adapter, is_trainable=True)
    model.enable_input_require_grads()  # for checkpointing
model.train()
model.config.use_cache = False
if a.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
cfg = model.config


def batch_of(step):
    rows = [tokens(a.seed, step * a.batch + b, a.seq, cfg.vocab_size) for b in range(a.batch)]
    return (torch.tensor(rows) if a.batch > 1 else torch.from_numpy(rows[0]).unsqueeze(0)).to(a.device)


class MasterAdamW:
    """AdamW on fp32 copies of bf16 weights."""

    def __init__(self, params, **kw):
        self.p = [p for p in params if p.requires_grad]
        self.m = [p.detach().float().clone().requires_grad_() for p in self.p] if load_dtype != torch.float32 and a.dtype == "bf16" else None
        self.opt = torch.optim.AdamW(self.m or self.p, fused=True, **kw)

    def step(self):
        if self.m:
            for p, m in zip(self.p, self.m):
                m.grad = p.grad.float()
        if a.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.m or self.p, a.clip)
        self.opt.step()
        if self.m:
            with torch.no_grad():
                for p, m in zip(self.p, self.m):
                    p.copy_(m)
                    m.grad = None
        for p in self.p:
            p.grad = None


opt = MasterAdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=a.wd)

if a.dump:
    from safetensors.torch import save_file
    ids = batch_of(0)
    out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    t = {"input_ids": ids, "loss": out.loss.detach().reshape(1).clone()}
    if not a.no_logits:
        t["logits"] = out.logits.detach().float().contiguous()
    for n, p in model.named_parameters():
        t["grad." + n] = p.grad.detach().float().clone()
    gn = torch.sqrt(sum((g.double() ** 2).sum() for k, g in t.items() if k.startswith("grad."))).item()
    opt.step()
    for n, p in model.named_parameters():
        t["after." + n] = p.detach().float().clone()
    meta = {"model": os.path.basename(os.path.normpath(a.model)), "seq": str(a.seq), "batch": str(a.batch), "seed": str(a.seed),
            "lr": str(a.lr), "wd": str(a.wd), "betas": "0.9,0.999", "eps": "1e-8", "attn": attn, "grad_norm": repr(gn),
            **versions()}
    save_file(t, a.dump, metadata=meta)
    print(json.dumps({"dump": a.dump, "loss": out.loss.item(), "grad_norm": gn, "tensors": len(t)}))
    sys.exit(0)


def one_step(ids):
    t0 = time.perf_counter()
    if a.dtype == "autocast":
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    else:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    t1 = time.perf_counter()
    loss.backward()
    t2 = time.perf_counter()
    opt.step()
    value = loss.item()
    if a.device == "cuda":
        torch.cuda.synchronize()
    t3 = time.perf_counter()
    return value, t3 - t0, (t1 - t0, t2 - t1, t3 - t2)


data = [batch_of(s) for s in range(a.steps)]
rss0 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
losses, times, parts = [], [], []
for s in range(a.steps):
    if s == min(a.warmup, a.steps - 1):
        load = Load()
    if a.profile and s == a.steps - 1:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            l, dt, p = one_step(data[s])
        open(a.profile, "w").write(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
    else:
        l, dt, p = one_step(data[s])
    losses.append(l), times.append(dt), parts.append(p)
w = min(a.warmup, a.steps - 1)
med = statistics.median(times[w:])
work = flops_per_step(cfg, a.seq, a.batch)
if a.adapter and work:  # frozen weights have no gradient; the adapter's own products are less than a hundredth of theirs
    work = (work[0] * 4 / 6, work[1])
res = {"what": "hf_single", "model": a.model, "dtype": a.dtype, "attn": attn, "seq": a.seq, "batch": a.batch, "ranks": 1,
       "threads": a.threads, "checkpointing": a.checkpointing, "step_s": [round(t, 4) for t in times], "median_step_s": round(med, 4),
       "fwd_bwd_opt_s": [round(statistics.median(x), 4) for x in zip(*parts[w:])],
       "tokens_per_s": round(a.seq * a.batch / med, 1),
       **flops_fields(work, med), "losses": [round(x, 6) for x in losses],
       "rss_before_mib": round(rss0), "peak_rss_mib": [round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)],
       "load": load.report(), "versions": versions()}
print(json.dumps(res))
if a.json:
    open(a.json, "w").write(json.dumps(res, indent=1))
