"""A package whose programs are shell scripts, and folders that look like libtorch, in a temporary folder."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(SOURCE, "packaging")
WHEEL = "__version__ = '{}'\ncuda: Optional[str] = {!r}\n"


def write(path, text="", mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


class FakePackage(unittest.TestCase):
    """The package lies in a folder with a blank; no Python is on the path until with_python() puts one there."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.package = os.path.join(self.folder, "my tools", "trireme-0-cpu")
        shutil.copytree(os.path.join(PACKAGING, "bin"), os.path.join(self.package, "bin"))
        os.makedirs(os.path.join(self.package, "libexec"))
        shutil.copy(os.path.join(PACKAGING, "environment.sh"), os.path.join(self.package, "libexec"))
        self.built_for(cuda="")
        self.program('printf "%s\\n" "$LD_LIBRARY_PATH" "$TRIREME_LIBTORCH" "$@"')
        # Of the machine's programs only those that the scripts call: no Python.
        self.tools = os.path.join(self.folder, "tools")
        os.makedirs(self.tools)
        for name in ("cat", "date", "dirname", "env", "grep", "mktemp", "readlink", "rm", "sed", "sh", "bash", "sleep", "tail", "timeout"):
            os.symlink(shutil.which(name), os.path.join(self.tools, name))
        self.environment = {"PATH": self.tools}

    def built_for(self, cuda):
        write(os.path.join(self.package, "libexec/built_for.sh"),
              f"package_name=trireme-0\nlibtorch_version=2.11\nlibtorch_cuda={cuda}\n")

    def program(self, script, name="trireme"):
        write(os.path.join(self.package, "libexec", name), "#!/bin/sh\n" + script + "\n", 0o755)

    def libtorch(self, at, version="2.11.0+cu130", cuda="13.0", nvidia=(), build_version=False):
        """A torch folder, as a wheel leaves it, or with build_version as the archive without Python; returns it."""
        at = os.path.join(self.folder, at)
        write(os.path.join(at, "lib/libtorch_cpu.so"))
        if build_version:
            write(os.path.join(at, "build-version"), version + "\n")
        else:
            write(os.path.join(at, "version.py"), WHEEL.format(version, cuda))
            write(os.path.join(at, "__init__.py"), "raise SystemExit('torch was imported')\n")
        if cuda:
            write(os.path.join(at, "lib/libtorch_cuda.so"))
        for name in nvidia:
            os.makedirs(os.path.join(os.path.dirname(at), "nvidia", name, "lib"))
        return at

    def with_python(self, packages=None, at="tools", name="python3"):
        """A Python whose packages lie in that folder."""
        path = f'PYTHONPATH="{packages}" ' if packages else ""
        write(os.path.join(self.folder, at, name), f'#!/bin/sh\n{path}exec "{sys.executable}" -S "$@"\n', 0o755)

    def start(self, *arguments, program="trireme", shell=None, cwd=None, **variables):
        path = program if os.path.isabs(program) else os.path.join(self.package, "bin", program)
        return subprocess.run([*([shell] if shell else []), path, *arguments], env={**self.environment, **variables}, text=True,
                              cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
