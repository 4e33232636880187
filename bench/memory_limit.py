"""A limit on the memory of one program and all that it starts, and the most that it used.

Counted is what no file backs and so cannot be dropped: RssAnon + RssShmem of /proc/PID/status, summed over the process
tree. A control group (v2) whose memory.max can be set is the limit where this process may make one; elsewhere a watchdog
ends the program at the first sample above. The samples are the same in both.
"""
import os
import signal
import tempfile
import threading
import time

SAMPLE_SECONDS = 0.05
TREE_SECONDS = 0.5  # between two looks for new children


def used_bytes(pid):
    """Memory of one process that no file backs; 0 when it has ended."""
    total = 0
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total


def tree_of(root):
    """`root` and its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])  # the name before may hold anything
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


class Watchdog:
    """Samples one run; ends it at the first sample above the limit."""

    description = f"watchdog, a sample of RssAnon + RssShmem every {SAMPLE_SECONDS * 1000:.0f} ms"

    def __init__(self, limit_bytes):
        self.limit_bytes, self.peak_bytes, self.exceeded = limit_bytes, 0, False
        self._done = threading.Event()
        self._thread = None

    def wrap(self, command):
        return command

    def start(self, process):
        """For machine.run: `process` leads a process group of its own."""
        self._thread = threading.Thread(target=self._watch, args=(process,), daemon=True)
        self._thread.start()

    def finish(self):
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, process):
        tree, looked = [process.pid], 0.0
        while not self._done.is_set() and process.returncode is None:
            if time.monotonic() - looked > TREE_SECONDS:
                tree, looked = tree_of(process.pid), time.monotonic()
            used = sum(used_bytes(pid) for pid in tree)
            self.peak_bytes = max(self.peak_bytes, used)
            if self._ends(used) and process.returncode is None:
                self.exceeded = True
                os.killpg(process.pid, signal.SIGKILL)
                return
            self._done.wait(SAMPLE_SECONDS)

    def _ends(self, used):
        return used > self.limit_bytes


class ControlGroup(Watchdog):
    """The kernel ends the run above the limit; the samples only tell the peak."""

    description = "memory cgroup v2 (memory.max, no swap)"

    def __init__(self, limit_bytes):
        super().__init__(limit_bytes)
        self._folder = tempfile.mkdtemp(prefix="trireme-longest-", dir=own_control_group())
        try:
            self._set("memory.max", limit_bytes)
            for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
                if os.path.exists(os.path.join(self._folder, name)):
                    self._set(name, value)
        except OSError:
            os.rmdir(self._folder)
            raise

    def _set(self, name, value):
        # Not made where the kernel has not: such a file would be no limit.
        with open(os.open(os.path.join(self._folder, name), os.O_WRONLY), "w") as file:
            file.write(str(value))

    def wrap(self, command):
        procs = os.path.join(self._folder, "cgroup.procs")
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', procs, *command]

    def _ends(self, used):
        return False

    def finish(self):
        super().finish()
        with open(os.path.join(self._folder, "memory.events")) as file:
            events = dict(line.split() for line in file)
        self.exceeded = int(events.get("oom_kill", 0)) > 0
        for _ in range(100):  # what it killed may still be going
            try:
                return os.rmdir(self._folder)
            except OSError:
                time.sleep(0.1)


def own_control_group():
    """The folder of this process's control group, v2."""
    with open("/proc/mounts") as file:
        mounts = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
    with open("/proc/self/cgroup") as file:
        paths = [line.strip()[3:] for line in file if line.startswith("0::")]
    if not mounts or not paths:
        raise OSError("no control groups of version 2 are mounted")
    return os.path.join(mounts[0], paths[0].lstrip("/"))


def best_limit(limit_bytes):
    """The class to make for each run, and in words which limit that is and why."""
    try:
        with open(os.path.join(own_control_group(), "cgroup.controllers")) as file:
            if "memory" not in file.read().split():
                raise OSError("the memory controller is not among this group's")
        ControlGroup(limit_bytes).finish()
    except OSError as error:
        return Watchdog, f"{Watchdog.description} (no memory cgroup v2: {error.strerror or error})"
    return ControlGroup, ControlGroup.description
