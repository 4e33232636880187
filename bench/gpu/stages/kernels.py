"""Which GPU kernels a step of four layers of 8B's width runs, and for how long.

By CUPTI's records (kernel_table.cpp), which need no permission; by nsys where it is; and some kernels' counters by ncu,
where it is there and the driver permits it.
"""
import os
import shutil
import sys

import judges
from command import Command, Verdict, exit_problem

# Of loading, the products that are timed and the first step, by counting: some 300 kernels a step, 1,000 to 1,500 in all.
LAUNCHES_BEFORE = "700"
PATHS = os.environ.get("PATH", "") + ":/usr/local/cuda/bin:/opt/nvidia/nsight-compute:/opt/nvidia/nsight-systems/bin"


def counters(outcome, _):
    """ncu's page in CSV: a row for each kernel and metric."""
    output = outcome.stdout + outcome.stderr
    if "ERR_NVGPUCTRPERM" in output:
        return Verdict(lacks="the permission to read the GPU's counters (ERR_NVGPUCTRPERM)")
    rows = sum(line.startswith('"') for line in outcome.stdout.splitlines())
    return Verdict(exit_problem(outcome) or ("" if rows else "ncu printed no table"), {"rows_of_csv": rows})


def commands(setting):
    k = 1024 if setting.on_gpu else 16
    step = setting.bench_step("wide4", 8 * k, 3, 1, *setting.bf16, "--update_in_backward")
    script = setting.layout.script("gpu/kernel_table.py")
    ncu, nsys = shutil.which("ncu", path=PATHS), shutil.which("nsys", path=PATHS)
    a_gpu = "" if setting.on_gpu else "a GPU, by --device cpu"
    profile = os.path.join(setting.results, "logs", "kernels-nsys-profile")
    yield Command("table", [sys.executable, script, setting.device, os.path.join(setting.results, "logs"), *step], 120,
                  30 if setting.on_gpu else 8, model="wide4", judge=judges.json_rows, lacks=setting.lacks)
    yield Command("counters", [ncu or "ncu", "--set", "basic", "--launch-skip", LAUNCHES_BEFORE, "--launch-count", "120", "--csv", *step], 150, 60,
                  model="wide4", judge=counters, lacks=setting.lacks or a_gpu or ("" if ncu else "ncu"))
    yield Command("nsys", [nsys or "nsys", "profile", "--trace=cuda", "--stats=true", "--force-overwrite=true", "--output", profile, *step], 120, 40,
                  model="wide4", judge=judges.plain, lacks=setting.lacks or a_gpu or ("" if nsys else "nsys"))
