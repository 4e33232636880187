"""What was expected of an H200 before any GPU ran the program: rates known of its kernels, and steps of Llama-3-8B by counting.

The figures stand beside the measured ones in the summary; they judge nothing.
"""
import re

# (command, figure) -> expected value.
STEPS = {
    ("speed/step-2k", "step_seconds"): 0.35, ("speed/step-2k", "mfu_percent"): 28,
    ("speed/step-8k", "step_seconds"): 1.2, ("speed/step-8k", "mfu_percent"): 35,
    ("speed/step-32k", "step_seconds"): 6.0, ("speed/step-32k", "mfu_percent"): 39,
    ("long/step-128k", "step_seconds"): 45, ("long/step-128k", "mfu_percent"): 43,
}
# (pattern of a measurement's name, figure) -> expected value.
KERNELS = [
    (r"cudnn, ", "forward_tflops", 620), (r"cudnn, ", "backward_tflops", 515),
    (r"flash, ", "forward_tflops", 620 / 1.66), (r"flash, ", "backward_tflops", 515 / 1.66),
    (r"bf16 product .*random", "tflops", 720), (r"bf16 product .*ones", "tflops", 720 * 1.12),
    (r"within the device's memory", "gb_per_second", 4000),
    (r"pinned host memory (to|from)", "gb_per_second", 55),
]


def expected(command, figure, row_name=""):
    """The estimate, or None."""
    if row_name:
        return next((value for pattern, name, value in KERNELS if name == figure and re.match(pattern, row_name)), None)
    return STEPS.get((command, figure))
