"""What an H200 (products and FlashAttention-2: an H100) gave on 2026-11-26 and 27 (docs/benchmarks/history/2026-11-26-gpu.md, 2026-11-26-gpu-long.md, 2026-11-27-gpu-flash4.md): rates of its kernels, and steps of Llama-3-8B.

The figures stand beside the measured ones in the summary; they judge nothing.
"""
import re

# (command, figure) -> value.
STEPS = {
    ("speed/step-2k", "step_seconds"): 0.237, ("speed/step-2k", "mfu_percent"): 40.8,
    ("speed/step-8k", "step_seconds"): 0.768, ("speed/step-8k", "mfu_percent"): 55.5,
    ("speed/step-32k", "step_seconds"): 4.875, ("speed/step-32k", "mfu_percent"): 48.1,
    ("longest/step-384k", "step_seconds"): 268.0, ("longest/step-384k", "mfu_percent"): 52.6,
    ("long/step-128k", "step_seconds"): 39.6, ("long/step-128k", "mfu_percent"): 49.6,
}
# (pattern of a measurement's name, figure) -> value.
KERNELS = [
    (r"cudnn, ", "forward_tflops", 613), (r"cudnn, ", "backward_tflops", 530),
    (r"flash, ", "forward_tflops", 273), (r"flash, ", "backward_tflops", 244),
    (r"bf16 product .*random", "tflops", 725), (r"bf16 product .*ones", "tflops", 830),
    (r"pinned host memory (to|from)", "gb_per_second", 55),
]


def earlier_figure(command, figure, row_name=""):
    """The earlier figure, or None."""
    if row_name:
        return next((value for pattern, name, value in KERNELS if name == figure and re.match(pattern, row_name)), None)
    return STEPS.get((command, figure))
