#!/usr/bin/env python3
"""Makes the relocatable package of one build, as a folder and as its archive.

    make_package.py BUILD_FOLDER cpu|cuda OUT_FOLDER

    bin/      trireme, trireme-test, trireme-demo: scripts that find libtorch (environment.sh), then start
    libexec/  the program and the tests (of a CPU, or those of a GPU), stripped, without library paths; their list with time limits
    lib/      every library that they need, but for libtorch's, CUDA's, and the C and C++ libraries of the system
    share/    the repository's files that tests, benchmarks and the demo read; licences of the libraries

It refuses a binary that needs newer C or C++ libraries than Ubuntu 22.04 has, one that looks for libraries in a folder of
this machine, and an archive that is too large. Called by ./dev dist, which builds first.
"""
import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARCHIVE_LIMIT_BYTES = 60 << 20
# The newest symbol versions of Ubuntu 22.04, the oldest system that the package is for: glibc 2.35, GCC 12's libraries.
NEWEST = {"GLIBC": "2.35", "GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0"}
# What the package does not bring: the system's, libtorch's with its OpenMP runtime, and NVIDIA's.
FROM_THE_SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)|ld-linux-x86-64)\.so\.\d+")
FROM_LIBTORCH = re.compile(r"lib(torch|c10)\w*\.so|libgomp\.so\.1|lib(nccl|cu(da|dart|dnn|blas|blasLt|pti|fft|rand|solver|sparse|sparseLt|file)|nv\w+)\.so\.\d+")
COMPILED_IN = ("libgtest-dev", "libgmock-dev", "nlohmann-json3-dev")
FILES = ("trireme", "tests", "bench", "docs", "examples", "tools", "packaging", "README.md", "LICENSE")


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"dist: {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def needed(binary):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", binary))


def versions_needed(text):
    """(family, version) of each symbol version in `readelf --version-info` that is needed; in one that is defined the name is last."""
    return set(re.findall(r"Name: ([A-Z]+)_([\d.]+) +Flags", text))


def number(version):
    return tuple(int(word) for word in version.split("."))


def too_new(versions):
    return sorted(f"{family}_{version}" for family, version in versions
                  if family in NEWEST and number(version) > number(NEWEST[family]))


def refusals(binary):
    """Why the package cannot hold this program or library."""
    newer = too_new(versions_needed(run("readelf", "--version-info", "--wide", binary)))
    if newer:
        yield f"it needs {', '.join(newer)}, newer than Ubuntu 22.04's; build on Debian 12"
    path = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", binary))
    if path:
        yield f"it looks for libraries in {path[1]}"


def tests_of(listed, build, installed):
    """Rows (name, labels, limit in seconds, environment, binary) of those of ctest's tests whose binary is installed."""
    for test in listed:
        of = {item["name"]: item["value"] for item in test["properties"]}
        # Alone, or behind tests/support/in_shards.py, which the package does without.
        binary = next((os.path.basename(word) for word in test["command"] if os.path.dirname(word) == os.path.join(build, "bin")), "")
        if binary not in installed or "slow" in of["LABELS"]:
            continue
        variables = [word for word in of.get("ENVIRONMENT", []) if not word.startswith("TRIREME_BINARY=")] # bin/trireme-test's
        row = [test["name"], ";".join(of["LABELS"]), str(int(of["TIMEOUT"])), " ".join(variables), binary]
        odd = [word for word in variables if re.search(r"[\s|*?\[]", word) or build in word]
        if os.path.basename(test["command"][-1]) != binary or odd or "|" in "".join(row):
            sys.exit(f"dist: bin/trireme-test cannot run {test['name']}: {test['command']} with {variables}")
        yield row


def bundle(binaries, build, lib):
    """Copies the libraries that binaries need; returns where each came from."""
    taken, at_hand = {}, {}
    for binary in binaries:
        resolved = run("ldd", os.path.join(build, "bin", os.path.basename(binary)))
        at_hand.update(re.findall(r"(\S+) => (/.*) \(0x", resolved))
    waiting = list(binaries)
    while waiting:
        for name in needed(waiting.pop()):
            if name in taken or FROM_THE_SYSTEM.fullmatch(name) or FROM_LIBTORCH.fullmatch(name):
                continue
            if name not in at_hand:
                sys.exit(f"dist: {name} is needed and not found on this machine")
            taken[name] = os.path.realpath(at_hand[name])
            copy = shutil.copy(taken[name], os.path.join(lib, name))
            run("strip", "--strip-unneeded", copy)
            waiting.append(copy)
    return taken


def licences(libraries, folder, kind):
    """Of the libraries that the package brings, and of those that are compiled into its binaries."""
    owners = set(COMPILED_IN)
    for library in libraries:
        owners.add(run("dpkg-query", "-S", library).split(":")[0])
    for owner in owners:
        shutil.copy(f"/usr/share/doc/{owner}/copyright", os.path.join(folder, owner))
    if kind == "cpu":
        return
    # Headers, FlashAttention-4's kernels, and what NVIDIA's compiler of these links to them.
    for name, wheel in (("cudnn-frontend", "cudnn-frontend/nvidia_cudnn_frontend"), ("flash-attn-4", "flash4/flash_attn_4"),
                        ("nvidia-cutlass-dsl", "flash4/nvidia_cutlass_dsl"), ("apache-tvm-ffi", "flash4/apache_tvm_ffi")):
        texts = glob.glob(os.path.join(ROOT, f".deps/{wheel}-*.dist-info/licenses/LICENSE*"))
        if not texts:
            sys.exit(f"dist: the licence of {name} is not in .deps/{os.path.dirname(wheel)}; ./dev build cuda installs it")
        shutil.copy(texts[0], os.path.join(folder, name))


def libtorch_facts(build, kind):
    """The version (2.11) and, for the cuda package, the CUDA release (13) of the libtorch that it was built with."""
    cache = open(os.path.join(build, "CMakeCache.txt")).read()
    library = re.search(r"^LibTorch_CPU_LIBRARY:\w+=(.*)$", cache, re.M)[1]
    torch = os.path.dirname(os.path.dirname(library))
    for name in ("version.py", "build-version"):
        if os.path.exists(os.path.join(torch, name)):
            text = open(os.path.join(torch, name)).read()
            version = re.search(r"(\d+\.\d+)\.[\d]+\S*?(?:\+cu(\d\d)\d)?['\s]", text)
            return version[1], version[2] if kind == "cuda" else ""
    sys.exit(f"dist: no version of libtorch in {torch}")


def pack(folder, archive, seconds):
    """The same archive each time: files in order, of nobody, as old as the commit."""
    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = seconds
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with open(archive, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=seconds) as zipped, \
            tarfile.open(fileobj=zipped, mode="w") as tar:
        tar.add(folder, os.path.basename(folder), filter=plain) # tarfile sorts a folder's names


def main():
    build, kind, out = os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3])
    cache = open(os.path.join(build, "CMakeCache.txt")).read()
    version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", cache, re.M)[1]
    name = f"trireme-{version}-{kind}-linux-x86_64"
    package = os.path.join(out, name)
    shutil.rmtree(package, ignore_errors=True)
    libexec, lib, share, legal = (os.path.join(package, f) for f in ("libexec", "lib", "share/trireme", "share/licences"))
    for folder in (libexec, lib, share, legal):
        os.makedirs(folder)

    run("cmake", "--install", build, "--prefix", package, "--strip")
    binaries = [os.path.join(libexec, file) for file in sorted(os.listdir(libexec))]
    listed = json.loads(run("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]
    tests = sorted(tests_of(listed, build, os.listdir(libexec)))
    unlisted = {file for file in os.listdir(libexec) if file.endswith("_test")} - {row[4] for row in tests}
    if unlisted:
        sys.exit(f"dist: installed and not in ctest's list: {', '.join(sorted(unlisted))}")
    if kind == "cuda" and not os.path.exists(os.path.join(build, "flash4/flash4_kernels.inc")):
        sys.exit("dist: the build is without FlashAttention-4 (build/cuda/configure.log says why)")
    libraries = bundle(binaries, build, lib)
    licences(libraries.values(), legal, kind)

    shutil.copytree(os.path.join(ROOT, "packaging/bin"), os.path.join(package, "bin"))
    shutil.copy(os.path.join(ROOT, "packaging/environment.sh"), libexec)
    torch_version, cuda = libtorch_facts(build, kind)
    with open(os.path.join(libexec, "built_for.sh"), "w") as file:
        file.write(f"package_name={name}\nlibtorch_version={torch_version}\nlibtorch_cuda={cuda}\n")
    with open(os.path.join(libexec, "tests.list"), "w") as file:
        file.writelines("|".join(row) + "\n" for row in tests)
    for file in run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "--", *FILES).splitlines():
        if os.path.exists(os.path.join(ROOT, file)):
            os.makedirs(os.path.join(share, os.path.dirname(file)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, file), os.path.join(share, file))
    commit = run("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40").strip()
    with open(os.path.join(package, "COMMIT"), "w") as file:
        file.write(commit + "\n")

    elves = binaries + [os.path.join(lib, file) for file in libraries]
    wrong = [f"{os.path.relpath(elf, package)}: {why}" for elf in elves for why in refusals(elf)]
    if wrong:
        sys.exit("dist: refused:\n  " + "\n  ".join(wrong))
    archive = package + ".tar.gz"
    pack(package, archive, int(run("git", "-C", ROOT, "log", "-1", "--format=%ct")))
    report(package, archive, elves, libraries, tests)


def report(package, archive, elves, libraries, tests):
    newest = {}
    for elf in elves:
        for family, version in versions_needed(run("readelf", "--version-info", "--wide", elf)):
            newest[family] = max(newest.get(family, "0"), version, key=number)
    folder_bytes = sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(package) for file in files)
    print(f"{os.path.relpath(archive, ROOT)}: {os.path.getsize(archive) / 2**20:.1f} MiB, unpacked {folder_bytes / 2**20:.1f} MiB; "
          f"{len(tests)} tests; needs {', '.join(f'{family} {newest[family]}' for family in sorted(newest))}; "
          f"brings {', '.join(sorted(libraries))}")
    if os.path.getsize(archive) > ARCHIVE_LIMIT_BYTES:
        sys.exit(f"dist: the archive is larger than {ARCHIVE_LIMIT_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
