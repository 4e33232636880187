"""The systems that are compared, and how each is started for one measurement.

A measurement is (system, dtype, length, recompute, allocator). `shape` groups what is compared directly: one process
with all threads, or two ranks with half of them each.
"""
import os
from dataclasses import dataclass

from measuring import BINARY, OPERATORS

ALLOCATORS = {"glibc": None, "tcmalloc": "libtcmalloc_minimal.so.4", "jemalloc": "libjemalloc.so.2"}
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


@dataclass(frozen=True)
class System:
    name: str
    title: str
    shape: str  # "one process" | "two ranks"
    ours: bool
    program: bool = False  # the C++ program, with an allocator of its own


SYSTEMS = {
    system.name: system
    for system in (
        System("trireme1", "Trireme", "one process", True, program=True),
        System("hf", "Hugging Face Transformers", "one process", False),
        System("trireme2", "Trireme Ulysses, ZeRO-1, 2 ranks", "two ranks", True, program=True),
        System("ds", "DeepSpeed Ulysses, ZeRO-1, 2 ranks", "two ranks", False),
        System("hf2", "Hugging Face + Trireme, ZeRO-1, 2 ranks", "two ranks", True),
    )
}

# What a page compares directly: title, ours, the peer.
COMPARED = (
    ("one process", "trireme1", "hf"),
    ("two ranks", "trireme2", "ds"),
    ("two ranks, the same loop of Transformers over the same DeepSpeed engine", "hf2", "ds"),
)


def allocator_library(name):
    """Path of the library, None where the name means glibc, "" where it is not installed."""
    if ALLOCATORS[name] is None:
        return None
    return next(filter(os.path.exists, (os.path.join(folder, ALLOCATORS[name]) for folder in LIBRARY_FOLDERS)), "")


@dataclass(frozen=True)
class Measurement:
    system: str
    dtype: str  # fp32 | bf16
    length: int
    recompute: bool  # peers: gradient checkpointing; ours: --recompute full
    allocator: str  # our program brings its own for tensors: "own"
    adapter: str = ""  # folder of a LoRA adapter that is trained in place of the model

    def key(self, repeat):
        return f"{self.system}/{self.dtype}/{self.length}/{'recompute' if self.recompute else 'fastest'}/{self.allocator}/{repeat}"

    def command(self, root, model, steps, warmup, cores):
        system = SYSTEMS[self.system]
        threads = cores if system.shape == "one process" else max(1, cores // 2)
        amount = ["--seq", str(self.length), "--steps", str(steps), "--warmup", str(warmup)]
        amount += ["--adapter", self.adapter] if self.adapter else []
        if system.program:
            command = [BINARY] if threads == cores else [BINARY, "launch", "--nproc_per_node", "2", "--"]
            command += ["bench", "step", "--model", model, "--threads", str(threads), "--json", "--device", "cpu",
                        "--recompute", "full" if self.recompute else "none", *amount]
            return command + (["--bf16"] if self.dtype == "bf16" else []) + \
                (["--ulysses", "2", "--zero", "1"] if system.shape == "two ranks" else [])
        python, peers = os.path.join(root, ".deps/python/bin/python"), os.path.join(root, "bench/peers")
        amount += ["--model", model, "--dtype", self.dtype, "--threads", str(threads)]
        amount += ["--checkpointing"] if self.recompute else []
        if self.system == "hf":
            return [python, f"{peers}/hf_single.py", *amount]
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", f"{peers}/ds_ulysses_cpu.py",
                "--sequence", "trireme" if system.ours else "ulysses", "--zero", "1", *amount]

    def environment(self, root, cores):
        system = SYSTEMS[self.system]
        threads = cores if system.shape == "one process" else max(1, cores // 2)
        environment = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="",
                           OMP_NUM_THREADS=str(threads))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        if system.program:
            return environment
        environment["PATH"] = os.path.join(root, ".deps/python/bin") + os.pathsep + environment.get("PATH", "")
        environment.update(PYTHONPATH=os.path.join(root, "python"), TRIREME_OPERATORS=OPERATORS)
        library = allocator_library(self.allocator)
        if library:
            environment["LD_PRELOAD"] = library
        if self.allocator == "jemalloc":
            environment["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
        return environment
