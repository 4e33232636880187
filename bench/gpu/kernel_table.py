"""kernel_table.py DEVICE FOLDER COMMAND...: runs a command and prints its GPU kernels, a JSON line each, those with most time first.

Compiles kernel_table.cpp into FOLDER with the C++ compiler and the CUPTI that it finds: the toolkit's, or the wheel's beside torch.
"""
import glob
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 60


def cupti_homes():
    """(folder of cupti.h, folder of libcupti.so.13) pairs that are there."""
    wheels = [os.path.join(path, "nvidia/cu13") for path in sys.path if path]
    wheels += [os.path.join(os.path.dirname(os.path.dirname(HERE)), ".deps/libtorch/nvidia/cu13")]
    if os.environ.get("TRIREME_LIBTORCH"):
        wheels += [os.path.join(os.path.dirname(os.environ["TRIREME_LIBTORCH"]), "nvidia/cu13")]
    python = shutil.which("python3")
    if python:
        found = subprocess.run([python, "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True).stdout
        wheels += [os.path.join(path, "nvidia/cu13") for path in found.splitlines() if path]
    toolkit = "/usr/local/cuda"
    folders = [(f"{w}/include", f"{w}/lib") for w in wheels]
    folders += [(f"{toolkit}/extras/CUPTI/include", f"{toolkit}/extras/CUPTI/lib64"), (f"{toolkit}/include", f"{toolkit}/lib64")]
    headers = [include for include, _ in folders if os.path.exists(f"{include}/cupti.h")]
    libraries = [path for _, lib in folders for path in sorted(glob.glob(f"{lib}/libcupti.so.13*"))]
    return (headers[0], libraries[0]) if headers and libraries else None


def build(folder):
    """The library's path, or None and why."""
    compiler, homes = shutil.which("g++") or shutil.which("c++"), cupti_homes()
    if not compiler or not homes:
        return None, "a C++ compiler" if not compiler else "CUPTI (cupti.h and libcupti.so.13)"
    library = os.path.join(folder, "libkernel_table.so")
    done = subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", os.path.join(HERE, "kernel_table.cpp"), "-isystem", homes[0],
                           "-isystem", "/usr/local/cuda/include", homes[1], "-o", library], capture_output=True, text=True)
    if done.returncode:
        return None, f"a kernel_table.cpp that compiles: {done.stderr.strip().splitlines()[0]}"
    return library, ""


def main():
    device, folder, command = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3:]
    library, lacks = build(folder)
    table = os.path.join(folder, "kernel_table.jsonl")
    if os.path.exists(table):
        os.remove(table)
    if lacks:
        print(json.dumps({"name": "kernels", "lacks": lacks}), flush=True)
        return 0
    done = subprocess.run(command, env={**os.environ, "CUDA_INJECTION64_PATH": library, "TRIREME_KERNEL_TABLE": table}, stdout=subprocess.PIPE)
    os.remove(library)
    if done.returncode:
        return done.returncode
    if not os.path.exists(table):
        why = "a GPU, by --device cpu" if device == "cpu" else "kernels: CUPTI recorded none; see the messages on stderr"
        print(json.dumps({"name": "kernels", "lacks" if device == "cpu" else "error": why}), flush=True)
        return 0
    with open(table) as file:
        rows = sorted((json.loads(line) for line in file), key=lambda row: -row["seconds"])
    total = sum(row["seconds"] for row in rows) or 1
    print(json.dumps({"name": "all kernels and copies, all steps", "calls": sum(row["calls"] for row in rows), "seconds": total}))
    for row in rows[:ROWS]:
        print(json.dumps({**row, "name": row["name"][:160], "share_percent": 100 * row["seconds"] / total}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
