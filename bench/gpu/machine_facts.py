"""machine_facts.py FOLDER: the machine as JSON lines {"name", "value"}; FOLDER is where models will lie."""
import json
import os
import platform
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import machine  # noqa: E402

MODULES = ("torch", "transformers", "numpy", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")


def tell(name, value):
    print(json.dumps({"name": name, "value": value}), flush=True)


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return lines[0] if done.returncode == 0 and lines else None


def gigabytes_of_meminfo():
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return {name: round(int(fields[name].split()[0]) / 2**20, 1) for name in ("MemTotal", "MemAvailable", "SwapTotal")}


def control_group_limits():
    """Limits of memory and processors, of this process's control group as the container sees it."""
    limits = {}
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                 "/sys/fs/cgroup/pids.max"):
        try:
            with open(path) as file:
                limits[path] = file.read().strip()
        except OSError:
            pass
    return limits


def version_in(python, module):
    return first_line([python, "-c", f"import importlib.metadata as m; print(m.version({module!r}))"])


def main():
    query = ("name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm,clocks.max.mem,pcie.link.gen.max,pcie.link.width.max,"
             "mig.mode.current")
    gpu = first_line(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
    tell("gpu", dict(zip(query.split(","), gpu.split(", "))) if gpu else "none: nvidia-smi is missing or finds none")
    tell("machine", machine.describe())
    tell("memory_gib", gigabytes_of_meminfo())
    tell("control_groups", control_group_limits() or "no limits found")
    folder = sys.argv[1]
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    for name, where in (("scratch", folder), ("tmp", "/tmp"), ("shm", "/dev/shm")):
        if os.path.exists(where):
            usage = shutil.disk_usage(where)
            tell(f"disk_{name}", {"folder": where, "total_gib": round(usage.total / 2**30, 1), "free_gib": round(usage.free / 2**30, 1)})
    for python in dict.fromkeys((os.environ.get("TRIREME_PYTHON"), sys.executable, shutil.which("python3"))):
        if python:
            tell(f"python {python}", {name: version_in(python, name) for name in MODULES})
    tell("python", platform.python_version())
    for tool in ("nvcc", "ncu", "nsys", "g++"):
        tell(f"tool {tool}", shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin") or "not found")
    tell("variables", {name: value for name, value in os.environ.items() if name.startswith(("CUDA", "PYTORCH", "TORCH", "NCCL", "OMP"))})


if __name__ == "__main__":
    main()
