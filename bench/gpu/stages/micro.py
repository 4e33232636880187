"""What torch's own kernels reach on this GPU: the measure of what a step can be. torch alone, our program has no part in it."""
import judges
from command import Command
from layout import python_with

GROUPS = ("attention", "matmul", "weight_gradients", "copies", "launches", "fp32_attention")


def commands(setting):
    python = python_with(setting.layout, "torch")
    lacks = "" if python else "a Python with torch; name one in TRIREME_PYTHON"
    script = setting.layout.script("gpu/micro_bench.py")
    limit = {"attention": 90, "fp32_attention": 60}  # others 45; usually 8 to 12, most of it the import of torch
    return [Command(group, [python, script, group, "--device", setting.device], limit.get(group, 45), 12,
                    judge=judges.json_rows, lacks=lacks) for group in GROUPS]
