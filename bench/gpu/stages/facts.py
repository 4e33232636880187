"""The machine: GPU and driver, processor, memory, disk, limits of control groups, torch, and what the program sees."""
import sys

import judges
from command import Command


def commands(setting):
    layout = setting.layout
    smi = ["nvidia-smi", "-q"]
    return [
        Command("machine", [sys.executable, layout.script("gpu/machine_facts.py"), layout.scratch], 20, 3, judge=judges.json_rows),
        Command("info", [layout.program, "info"], 30, 5, judge=judges.plain, lacks=layout.missing()),
        Command("nvidia-smi", smi, 20, 5, judge=judges.plain, lacks=setting.lacks if setting.on_gpu else "a GPU, by --device cpu"),
    ]
