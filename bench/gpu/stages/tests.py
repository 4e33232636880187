"""The tests of the label gpu, one program at a time: attention first, then NCCL, the engine, a run.

On a CPU their siblings: the same sources on the guarded device, and the kernels of cuda_calls_test.
"""
import judges
from command import Command

LIMITS = {"cuda_attention_test": 300, "engine_on_cuda_test": 240, "run_on_cuda_test": 180}
ON_CPU = {"attention_test": ["--gtest_filter=*Cuda*:*Mask*"], "run_on_guarded_device_test": [], "cuda_attention_test": []}


def environment_of(layout):
    """As ctest gives it."""
    return {"OMP_WAIT_POLICY": "passive", "TORCH_FR_BUFFER_SIZE": "0", "TRIREME_BINARY": layout.binary}


def missing(layout, name):
    if layout.has_test(name):
        return ""
    return f"the test program {name}" + (", which is in the cpu package" if layout.package else "; build it")


def commands(setting):
    layout = setting.layout
    if setting.on_gpu:
        others = [name for name in layout.tests_like("*nccl*_test", "*cuda*_test") if name not in LIMITS]
        names = {name: [] for name in ("cuda_attention_test", *others, "engine_on_cuda_test", "run_on_cuda_test")}
    else:
        names = ON_CPU
    return [Command(name, layout.test(name, *words), LIMITS.get(name, 90), 10, environment=environment_of(layout), judge=judges.gtests,
                    lacks=setting.lacks or missing(layout, name))
            for name, words in names.items()]
