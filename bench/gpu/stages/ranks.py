"""What travels between ranks: four ranks as threads of one process on one GPU, and NCCL with itself.

NCCL refuses two ranks on one GPU; its test is of size 1.
"""
import judges
from command import Command
from stages.tests import environment_of


def commands(setting):
    layout = setting.layout
    sizes = ["--tokens", "32k", "--heads", "32", "--kv_heads", "8", "--head_dim", "128"] if setting.on_gpu else ["--tokens", "512"]
    argv = [layout.program, "bench", "comm", "--ranks_as_threads", "4", *sizes, "--dtype", "bf16", "--device", setting.device, "--json"]
    yield Command("bench-comm-4-threads", argv, 120, 20 if setting.on_gpu else 5, judge=judges.exchanges, lacks=setting.lacks)
    names = layout.tests_like("*nccl*_test") if setting.on_gpu else []
    lacks = setting.lacks or ("a test of NCCL (a build with CUDA)" if not names else "")
    for name in names or ["nccl_test"]:
        yield Command(name, layout.test(name), 60, 10, environment=environment_of(layout), judge=judges.gtests, lacks=lacks)
