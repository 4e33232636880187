"""Right numbers: references of Hugging Face, a wide model against the CPU's losses and Transformers', and races of streams.

A race shows where waiting after each kernel (CUDA_LAUNCH_BLOCKING) or fresh memory for each tensor
(PYTORCH_NO_CUDA_MEMORY_CACHING) changes the losses of a short training run by more than rounding.
"""
import os

import judges
from command import Command
from layout import python_with

# Of head widths that a GPU's kernels take in bf16 (a multiple of 8). In bf16 the small models differ by up to 0.09 on a CPU; a wrong kernel by 1.
FIXTURES = (("llama", "reference", "fp32"), ("llama", "reference", "bf16"), ("llama", "packed", "fp32"), ("mistral_window_linear", "reference", "bf16"),
            ("qwen3", "reference", "fp32"), ("qwen3_moe_sparse", "reference", "fp32"), ("mixtral", "reference", "fp32"),
            ("llama", "padded", "bf16"), ("bert", "reference", "fp32"))
TOLERANCE = {"fp32": "1e-4", "bf16": "0.2"}
OFFLOAD = ["--offload_activations", "cpu", "--offload_optimizer", "cpu", "--zero", "3", "--offload_params", "cpu"]


def verify(setting, model, reference, precision):
    folder = setting.layout.fixture(model)
    argv = [setting.layout.program, "verify", "--model", folder, "--reference", os.path.join(folder, reference + ".safetensors"),
            "--precision", precision, "--tolerance", TOLERANCE[precision], "--device", setting.device, "--json"]
    return Command(f"verify-{model}-{reference}-{precision}", argv, 45, 5, judge=judges.verified, lacks=setting.lacks)


def commands(setting):
    lacks, gpu = setting.lacks, setting.on_gpu
    tokens = 256 if gpu else 64
    steps = setting.bench_step("wide4", tokens, 5, 0, "--learning_rate", "1e-4")
    on_cpu = setting.bench_step("wide4", tokens, 5, 0, "--learning_rate", "1e-4", device="cpu")
    race = setting.bench_step("wide4", 4096 if gpu else 128, 5, 0, "--learning_rate", "1e-4")
    usual = 25 if gpu else 5
    yield from (verify(setting, *fixture) for fixture in FIXTURES[:3])

    def step(name, argv, judge, environment=None):
        return Command(name, argv, 150, usual, environment=environment or {}, model="wide4", judge=judge, lacks=lacks)

    yield step("wide-on-cpu", on_cpu, judges.step_rate)
    yield step("wide-fp32", steps, judges.losses_like("truth/wide-on-cpu", 1e-4, 2e-3))
    yield step("wide-bf16", [*steps, *setting.bf16], judges.losses_like("truth/wide-on-cpu", 1e-2, 3e-2))
    for kind, words in (("plain", ["--update_in_backward"]), ("offload", OFFLOAD)):
        yield step(f"race-{kind}", [*race, *setting.bf16, *words], judges.step_rate)
        same = judges.losses_like(f"truth/race-{kind}", 1e-4, 3e-3, norms_tolerance=2e-2)
        yield step(f"race-{kind}-blocking", [*race, *setting.bf16, *words], same, {"CUDA_LAUNCH_BLOCKING": "1"})
        yield step(f"race-{kind}-no-caching", [*race, *setting.bf16, *words], same, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    python = python_with(setting.layout, "torch", "transformers", "numpy")
    peer = [python, setting.layout.script("peers/hf_single.py"), "--model", setting.model_folder("wide4"), "--seq", str(tokens), "--steps", "5",
            "--dtype", "fp32", "--lr", "1e-4", "--device", setting.device, "--threads", str(len(os.sched_getaffinity(0)))]
    yield Command("wide-transformers", peer, 150, usual, model="wide4", judge=judges.peer_losses("truth/wide-fp32", 1e-4, 2e-3),
                  lacks=lacks or ("" if python else "a Python with transformers and numpy; name one in TRIREME_PYTHON"))
    yield from (verify(setting, *fixture) for fixture in FIXTURES[3:])
