#!/usr/bin/env python3
"""Makes fixtures/schedules.json: learning rates that transformers.get_scheduler gives, one list a schedule.

    .deps/python/bin/python tests/train/make_schedule_fixture.py
"""

import json
import pathlib

import torch
from transformers import get_scheduler

CASES = [
    ("linear", 5, 40, {}),
    ("linear", 0, 7, {}),
    ("cosine", 5, 40, {}),
    ("cosine", 0, 13, {"num_cycles": 1.5}),
    ("cosine_with_restarts", 4, 40, {"num_cycles": 3}),
    ("cosine_with_min_lr", 5, 40, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", 2, 21, {"min_lr": 1e-5}),
    ("polynomial", 5, 40, {"lr_end": 1e-6, "power": 2.0}),
    ("inverse_sqrt", 8, 40, {}),
    ("inverse_sqrt", 4, 20, {"timescale": 30}),
    ("warmup_stable_decay", 5, 40, {"num_decay_steps": 10}),
    ("warmup_stable_decay", 0, 12, {"num_decay_steps": 12, "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 3, 20, {"num_decay_steps": 7, "decay_type": "1-sqrt", "min_lr_ratio": 0.2}),
    ("warmup_stable_decay", 3, 20, {"num_decay_steps": 9, "num_cycles": 1.5}),
    ("warmup_stable_decay", 2, 10, {"num_decay_steps": 0}),
    ("constant", 0, 10, {}),
    ("constant_with_warmup", 4, 10, {}),
]
PEAK = 3e-4

out = []
for kind, warmup, total, kwargs in CASES:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total,
                              scheduler_specific_kwargs=kwargs)
    rates = []
    for _ in range(total):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    out.append({"kind": kind, "warmup_steps": warmup, "total_steps": total, "peak": PEAK, "kwargs": kwargs,
                "learning_rates": rates})
path = pathlib.Path(__file__).resolve().parent / "fixtures" / "schedules.json"
path.write_text(json.dumps(out) + "\n")
