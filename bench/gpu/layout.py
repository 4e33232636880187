"""Where the program, the tests, the repository's files and a Python with torch lie, in both homes of these scripts:

    a checkout        build/cuda/bin or build/cpu/bin; the files from the root
    the package       bin/trireme, libexec/ (programs and tests), share/trireme/ (the repository's files)

The package is known by bin/trireme in a folder above this file, a checkout by CMakePresets.json.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

# A test of the package needs the library path that the package's programs make for themselves.
START_IN_PACKAGE = 'root=$1; test=$2; shift 2; . "$root/libexec/environment.sh"; exec "$root/libexec/$test" "$@"'


@dataclass(frozen=True)
class Layout:
    program: str  # trireme, or the script that starts it
    binary: str  # the compiled program itself
    tests: str  # folder of the test binaries
    package: str  # the package's root; "" in a checkout
    files: str  # the repository's files: tests/, bench/, tools/
    scratch: str  # folder for models, on a local disk; may be lost

    def test(self, name, *words):
        """The command line of a test binary."""
        if self.package:
            return ["sh", "-c", START_IN_PACKAGE, "sh", self.package, name, *words]
        return [os.path.join(self.tests, name), *words]

    def has_test(self, name):
        return os.path.exists(os.path.join(self.tests, name))

    def tests_like(self, *patterns):
        found = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(self.tests, pattern)))]
        return [os.path.basename(path) for path in dict.fromkeys(found) if os.access(path, os.X_OK)]

    def fixture(self, *words):
        return os.path.join(self.files, "tests/parity/fixtures", *words)

    def script(self, *words):
        return os.path.join(self.files, "bench", *words)

    def missing(self):
        """What is to be done where the program is not there; "" where it is."""
        if os.path.exists(self.binary):
            return ""
        return f"no program at {self.binary}: build it first (./dev build {os.path.basename(os.path.dirname(self.tests))})"


def find_layout(device, scratch="", begin=os.path.abspath(__file__)):
    """`device` is cuda or cpu; it chooses the build of a checkout. A package holds one build for both."""
    folder = os.path.dirname(begin)
    while folder != os.path.dirname(folder):
        if os.path.exists(os.path.join(folder, "bin/trireme")) and os.path.isdir(os.path.join(folder, "libexec")):
            return Layout(os.path.join(folder, "bin/trireme"), os.path.join(folder, "libexec/trireme"), os.path.join(folder, "libexec"),
                          folder, os.path.join(folder, "share/trireme"),
                          scratch or os.path.join(tempfile.gettempdir(), f"trireme-gpu-{os.getuid()}"))
        if os.path.exists(os.path.join(folder, "CMakePresets.json")):
            bin_folder = os.path.join(folder, "build", device, "bin")
            program = os.path.join(bin_folder, "trireme")
            return Layout(program, program, bin_folder, "", folder, scratch or os.path.join(folder, "build/gpu"))
        folder = os.path.dirname(folder)
    sys.exit(f"gpu: {begin} lies neither in a checkout (CMakePresets.json) nor in the package (bin/trireme) of Trireme")


def has_module(python, name):
    """Whether that Python finds a module, without importing it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def python_with(layout, *modules):
    """The first Python that has all of the modules, or "": TRIREME_PYTHON, .deps/python of a checkout, this one, python3."""
    for python in (os.environ.get("TRIREME_PYTHON"), os.path.join(layout.files, ".deps/python/bin/python"), sys.executable,
                   shutil.which("python3")):
        if python and os.path.exists(python) and all(has_module(python, name) for name in modules):
            return python
    return ""
