"""The machine: GPU and driver, processor, memory, disk, limits of control groups, torch, and what the program sees."""
import shutil
import sys

import judges
from command import Command


def commands(setting):
    layout = setting.layout
    smi = shutil.which("nvidia-smi")
    return [
        Command("machine", [sys.executable, layout.script("gpu/machine_facts.py"), layout.scratch], 20, 3, judge=judges.json_rows),
        Command("info", [layout.program, "info"], 30, 5, judge=judges.plain, lacks=layout.missing()),
        Command("nvidia-smi", [smi or "nvidia-smi", "-q"], 20, 5, judge=judges.plain, lacks="" if smi else "no nvidia-smi, so no GPU's driver"),
    ]
