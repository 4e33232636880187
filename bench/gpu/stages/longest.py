"""The whole of Llama-3-8B at lengths that one H200 and 125 GiB of host hold, one step each, with the offload that trireme plan recommends for them."""
import judges
from command import Command
from models import is_halved
from stages.speed import UPDATE

ON_HOST = ("--offload_activations", "cpu", "--optim_state_dtype", "bf16")
STATES_ON_HOST = ("--zero", "3", "--offload_params", "cpu", "--offload_optimizer", "cpu")


def commands(setting):
    k = 1024 if setting.on_gpu else 1
    lacks = setting.lacks or ("a GPU of 120 GiB" if is_halved(setting.device, "8b") else "")

    def step(name, thousands, usual_seconds, limit_seconds, *words):
        words = (*setting.bf16, UPDATE, *ON_HOST, "--memory_report", *words)
        return Command(name, setting.bench_step("8b", thousands * k, 1, 0, *words), limit_seconds, usual_seconds if setting.on_gpu else 8,
                       model="8b", judge=judges.step_rate, lacks=lacks)

    return [
        step("step-384k", 384, 310, 480),
        step("step-512k", 512, 520, 589, *STATES_ON_HOST),
        step("step-440k", 440, 390, 560),
    ]
