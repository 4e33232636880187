"""Long sequences of Llama-3-8B on one GPU with activations on the host, where memory goes, and a planned out-of-memory.

Those of longest.py take five to ten minutes a step.
"""
import judges
from command import Command
from models import is_halved
from stages.speed import UPDATE


def commands(setting):
    k = 1024 if setting.on_gpu else 16
    step = (*setting.bf16, UPDATE)
    offload = (*step, "--offload_activations", "cpu", "--memory_report")
    out_of_memory = setting.bench_step("8b", 64 * k if setting.on_gpu else 1 << 20, 1, 0, *step, "--recompute", "none")
    if not setting.on_gpu:
        # RLIMIT_DATA stands in for the GPU's memory.
        out_of_memory = ["sh", "-c", 'ulimit -d 600000 && exec "$@"', "sh", *out_of_memory]
    # Half of its layers take 59 GiB, and one layer's backward at 256K 27 GiB.
    short_of_memory = "a GPU of 120 GiB" if is_halved(setting.device, "8b") else ""
    memory = judges.out_of_memory(("activations", "tiles", "attention"))
    return [
        Command("step-128k", setting.bench_step("8b", 128 * k, 2, 1, *offload), 280, 150 if setting.on_gpu else 8, model="8b",
                judge=judges.step_rate, lacks=setting.lacks),
        Command("out-of-memory", out_of_memory, 120, 45 if setting.on_gpu else 8, model="8b", judge=memory, lacks=setting.lacks),
        Command("step-256k", setting.bench_step("8b", 256 * k, 1, 0, *offload), 400, 260 if setting.on_gpu else 8, model="8b",
                judge=judges.step_rate, lacks=setting.lacks or short_of_memory),
    ]
