"""The machine that a benchmark runs on: its processor, how busy others keep it, and what one program used of it."""
import os
import resource
import signal
import subprocess
import time

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def cpu_fields():
    fields = {}
    with open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return fields


def describe():
    """Processor, features that matter for matmuls, cores that this process may use, memory."""
    fields = cpu_fields()
    flags = set(fields.get("flags", "").split())
    with open("/proc/meminfo") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "processor": fields.get("model name", "unknown"),
        "features": [feature for feature in FEATURES if feature in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": os.uname().release,
    }


def _busy_and_stolen_seconds():
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    idle, stolen = ticks[3] + ticks[4], ticks[7]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks[:8]) - idle - stolen) / hertz, stolen / hertz


def wait_until_quiet(limit_seconds, busy_cores=0.15, window_seconds=3):
    """Returns the cores that others use, once they are few or the limit is over."""
    start = time.time()
    while True:
        busy, stolen = _busy_and_stolen_seconds()
        time.sleep(window_seconds)
        busy_now, stolen_now = _busy_and_stolen_seconds()
        cores = (busy_now - busy + stolen_now - stolen) / window_seconds
        if cores < busy_cores or time.time() - start > limit_seconds:
            return cores


def _own_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _in_child():
    os.setsid()
    with open("/proc/self/oom_score_adj", "w") as file:  # when memory ends, it is this program that goes
        file.write("1000")


def run(command, environment, limit_seconds, on_start=None):
    """Runs a program to its end, or to the limit. Returns exit code (None: over the limit), its output, and the load:
    cores that it and that other processes used while it ran, from start-up to end. `on_start` is given the process,
    which leads a session and a process group of its own."""
    busy, stolen = _busy_and_stolen_seconds()
    own, start = _own_seconds(), time.time()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=_in_child)
    code = None
    try:
        if on_start is not None:
            on_start(process)
        out, err = process.communicate(timeout=limit_seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    wall = time.time() - start
    busy_now, stolen_now = _busy_and_stolen_seconds()
    used = _own_seconds() - own
    load = {
        "wall_s": round(wall, 1),
        "own_cores": round(used / wall, 2),
        "other_cores": round(max(0.0, busy_now - busy - used) / wall, 2),
        "steal_cores": round((stolen_now - stolen) / wall, 2),
    }
    return code, out, err, load
