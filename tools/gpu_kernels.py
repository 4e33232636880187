#!/usr/bin/env python3
"""Compiles the GPU kernels with nvcc and prints a Markdown table: registers, spilled bytes, shared memory and
occupancy of each, by architecture.

    tools/gpu_kernels.py                      # every .cu under trireme/
    tools/gpu_kernels.py trireme/kernels/norm_kernel.cu --arch 90

A row stands for a kernel's number formats (fp32, bf16, fp16): least and most. Occupancy is that of full blocks of the largest size that a kernel declares (__launch_bounds__): threads that a
multiprocessor holds at once, by registers and shared memory, of those that it could. Needs nvcc and c++filt, no GPU.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", "--fmad=false", f"-I{ROOT}"]
# CUDA's programming guide, table of compute capabilities: threads, 32-bit registers and shared memory of a
# multiprocessor; of that a block takes 1 KiB more than it asks for. Warps get registers in units of 256.
THREADS, REGISTERS, BLOCKS = 2048, 65536, 32
SHARED_BYTES = {"80": 164 << 10, "90": 228 << 10, "100": 228 << 10}


def occupancy(arch, threads, registers, shared_bytes):
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    blocks = min(BLOCKS, THREADS // (warps * 32), REGISTERS // of_warp // warps,
                 SHARED_BYTES[arch] // (shared_bytes + 1024))
    return blocks * warps * 32 / THREADS


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout + done.stderr


def readable(symbols):
    names = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    for symbol, name in zip(symbols, names.stdout.splitlines()):
        name = re.sub(r"^void ", "", name)
        name = re.sub(r"trireme::|\(anonymous namespace\)::", "", name)
        depth = 0  # the arguments' list is the last one outside of <>
        for at, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                name = name[:at]
                break
        yield symbol, name


def without_formats(name):
    name = re.sub(r"\b(Bf16|Fp16|float)\b(, *)?", "", name)
    return re.sub(r"<[ ,]*>", "", name).replace(" >", ">")


def spread(numbers):
    numbers = list(numbers)
    return str(numbers[0]) if min(numbers) == max(numbers) else f"{min(numbers)}-{max(numbers)}"


def kernels_of(source, arch):
    """symbol -> (threads, registers, spilled bytes, shared bytes)"""
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        run(["nvcc", *FLAGS, f"-arch=compute_{arch}", "-ptx", "-o", str(ptx), str(source)])
        text = ptx.read_text()
        said = run(["ptxas", f"-arch=sm_{arch}", "-v", "-o", str(Path(folder) / "kernel.cubin"), str(ptx)])
    threads = {m[1]: int(m[2]) for m in re.finditer(r"\.entry (\w+)\(.*?\.maxntid (\d+)", text, re.S)}
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        symbol = part[: part.index("'")]
        shared = re.search(r"(\d+) bytes smem", part)
        found[symbol] = (threads[symbol], int(re.search(r"Used (\d+) registers", part)[1]),
                         int(re.search(r"(\d+) bytes spill stores", part)[1]), int(shared[1]) if shared else 0)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--arch", nargs="+", default=["80", "90", "100"], choices=sorted(SHARED_BYTES))
    options = parser.parse_args()
    print("| kernel | threads | " + " | ".join(f"sm_{arch}: registers, spilled B, occupancy" for arch in options.arch)
          + " | shared B |")
    print("|---|---:|" + "---:|" * len(options.arch) + "---:|")
    spills = 0
    for source in options.sources or sorted((ROOT / "trireme").rglob("*.cu")):
        of_arch = {arch: kernels_of(source, arch) for arch in options.arch}
        rows = {}
        for symbol, name in readable(sorted(of_arch[options.arch[0]])):
            rows.setdefault(without_formats(name), []).append(symbol)
        for name, symbols in sorted(rows.items()):
            cells = []
            for arch in options.arch:
                found = [of_arch[arch][symbol] for symbol in symbols]
                spills += sum(kernel[2] for kernel in found)
                least = min(occupancy(arch, threads, registers, shared) for threads, registers, _, shared in found)
                cells.append(f"{spread(k[1] for k in found)}, {spread(k[2] for k in found)}, {least:.0%}")
            kernels = [of_arch[options.arch[0]][symbol] for symbol in symbols]
            print(f"| `{name}` | {spread(k[0] for k in kernels)} | " + " | ".join(cells)
                  + f" | {spread(k[3] for k in kernels)} |")
    if spills:
        sys.exit("a kernel spills registers")


if __name__ == "__main__":
    main()
