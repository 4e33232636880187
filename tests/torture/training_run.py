"""A small training run that is attacked, and the laws that hold whatever is done to it.

A run belongs to an Arena: one folder, one layout of ranks, one series of attempts that each go on where the last one ended.
Its numbers are held against an undisturbed run of the same layout: every step's loss, norm and rate, and the last
checkpoint's tensors, byte for byte.
"""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

STEPS, SAVE_EVERY, RANKS = 60, 4, 2
# Longer where the machine is busy with other work: a rank that starts slowly is not one that hangs.
DDP_TIMEOUT_SECONDS = int(os.environ.get("TORTURE_DDP_TIMEOUT", 10))
LOST_LAUNCHER_SECONDS = 30  # within which a launcher knows that another is gone, or does not come (docs/launching.md)
END_SECONDS = DDP_TIMEOUT_SECONDS + 10  # within which a disturbed run has ended
MARK = "TRIREME_TORTURE"

LAYOUTS = {
    "ulysses": ["--ulysses", "2"],
    "zero 3": ["--zero", "3"],
    "ring, zero 1": ["--ring", "2", "--zero", "1"],
}

# Asking to stop (docs/launching.md).
STOP_EXIT, DATA_EXIT, CONFIG_EXIT = 75, 65, 78


@dataclass
class Verdict:
    """What an attack showed: laws that it broke, each with a sentence."""

    lost: list = field(default_factory=list)  # work that had been saved, or was to be saved
    unnamed: list = field(default_factory=list)  # who or what is at fault was not said
    left_behind: list = field(default_factory=list)  # processes, files
    late: list = field(default_factory=list)  # did not end in time
    wrong: list = field(default_factory=list)  # numbers or exit codes

    def broken(self):
        return [f"{law}: {text}" for law, texts in vars(self).items() for text in texts]


def start_marked(command, mark, output, environment=None, **options):
    """Starts a process in a session of its own; `mark` finds it and all that it starts."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TRIREME_"))}
    env |= {MARK: mark, "OMP_NUM_THREADS": "1"} | (environment or {})
    return subprocess.Popen(
        [str(word) for word in command], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        start_new_session=True, **options)


def processes_of(mark):
    """pid -> rank (None: no rank) of living processes with this mark."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() not in variables:
                continue
            if Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                continue
        except OSError:
            continue
        rank = [v[5:] for v in variables if v.startswith(b"RANK=")]
        found[int(entry)] = int(rank[0]) if rank else None
    return found


def send(pids, number):
    """A signal to those of them that are still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def exit_of(process, seconds):
    """The exit code (negative: a signal); None when it did not end."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


class Arena:
    def __init__(self, binary, folder, layout, base=None):
        """`base`: an arena of the same layout whose model, tokens and undisturbed run serve here too."""
        self.binary, self.folder, self.layout = Path(binary), Path(folder), layout
        self.mark = uuid.uuid4().hex
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.output_dir = self.folder / "run"
        self.shared = base.shared if base else self.folder / "shared"
        self.process = None
        self.other_node = None  # a second launcher, where a run has two
        self.log = None
        if base is None:
            self._make_model()
            self._run_undisturbed()
        else:
            self.expected, self.final, self.start_seconds = base.expected, base.final, base.start_seconds

    def _make_model(self):
        self.shared.mkdir()
        text = self.shared / "text.txt"
        here = Path(__file__).resolve().parent
        text.write_text("".join(file.read_text() for file in sorted(here.glob("*.py"))))
        small = ["num_hidden_layers=2", "hidden_size=64", "intermediate_size=128"]
        sets = [word for item in small for word in ("--set", item)]
        for command in (["init", "--preset", "tiny", "--seed", "1", "--out", self.shared / "model", *sets],
                        ["tokenize", "--tokenizer", self.shared / "model", "--input", text, "--output", self.shared / "tokens"]):
            subprocess.run([self.binary, *command], check=True, stdout=subprocess.DEVNULL)

    def _run_undisturbed(self):
        begin = time.monotonic()
        self.start()
        self.wait_for_step(1)
        self.start_seconds = time.monotonic() - begin
        code = self.wait(600)
        if code != 0:
            raise SystemExit(f"the undisturbed run ended with {code}:\n{self.text()}")
        self.expected, self.final = self.records(), self.tensors(STEPS)
        self.reset()

    # One attempt.

    def command(self, *more):
        return ["train", "--model_name_or_path", self.shared / "model", "--train_file", self.shared / "tokens",
                *LAYOUTS[self.layout], "--max_seq_length", "128", "--per_device_train_batch_size", "1",
                "--max_steps", STEPS, "--save_steps", SAVE_EVERY, "--save_total_limit", "2", "--logging_steps", "1",
                "--report_to", "none", "--peak_tflops", "0.1", "--ddp_timeout", DDP_TIMEOUT_SECONDS,
                "--resume_from_checkpoint", "auto", "--output_dir", self.output_dir, *more]

    def start(self, *launch, before=(), command=None, **options):
        """`trireme launch`, `before` in front of it (timeout, prlimit, ...)."""
        self.log = self.folder / f"attempt-{uuid.uuid4().hex[:8]}.log"
        with open(self.log, "wb") as output:
            environment = {"TMPDIR": str(self.temporary)}
            command = ["--", *(command or self.command())]
            nodes = options.pop("nodes", 1)
            if nodes == 2:
                launch = ["--nnodes", 2, "--master_addr", "127.0.0.1", "--master_port", free_port(),
                          "--join_seconds", LOST_LAUNCHER_SECONDS, *launch]
                environment["TRIREME_SECRET"] = uuid.uuid4().hex * 2
            launcher = [*before, self.binary, "launch", "--nproc_per_node", RANKS // nodes, "--grace_seconds", "2", *launch]
            output = options.pop("output", output)
            if nodes == 2:
                self.other_node = start_marked([*launcher, "--node_rank", 1, *command], self.mark, output, environment, **options)
                launcher += ["--node_rank", 0]
            self.process = start_marked([*launcher, *command], self.mark, output, environment, **options)

    def text(self):
        return self.log.read_text(errors="replace") if self.log else ""

    def wait(self, seconds):
        return exit_of(self.process, seconds)

    def rank_pids(self):
        return {rank: pid for pid, rank in processes_of(self.mark).items() if rank is not None}

    def end_all(self):
        """Whatever is left ends now; a rank stopped by SIGSTOP too."""
        send(processes_of(self.mark), signal.SIGKILL)
        if self.process:
            self.wait(30)

    # Moments.

    def _until(self, seen, seconds=60):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.process.poll() is None:
            if seen():
                return True
            time.sleep(0.001)
        return False

    def wait_for_step(self, step):
        return self._until(lambda: self.last_step() >= step)

    def wait_for_save(self):
        checkpoints = self.output_dir / "checkpoints"

        def saving():
            try:
                return any(".tmp" in name for name in os.listdir(checkpoints))
            except OSError:
                return False

        return self._until(saving)

    def wait_for_moment(self, random, moments=("start", "training", "save")):
        """Waits for a random moment of a random kind; its kind, or None when the run ended before."""
        kind = random.choice(moments)
        if kind == "start":
            return kind if self.wait(random.uniform(0, self.start_seconds)) is None else None
        # Steps that the attempt before has not done; none are left when it was killed after its last save.
        begin = min(max(self.newest() or 0, self.last_step()), STEPS - 1)
        step = random.randint(begin + 1, min(begin + 5 * SAVE_EVERY, STEPS))
        seen = self.wait_for_step(step) and (kind != "save" or self.wait_for_save())
        if seen and self.wait(random.uniform(0, 0.01)) is None:
            return kind
        return None

    # The run's folder.

    def records(self):
        """step -> loss, norm and rate."""
        found = {}
        try:
            lines = (self.output_dir / "metrics.jsonl").read_text().splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run
            if "loss" in record:
                found[record["step"]] = (record["loss"], record["grad_norm"], record["learning_rate"])
        return found

    def last_step(self):
        return max(self.records(), default=0)

    def checkpoints(self):
        try:
            names = os.listdir(self.output_dir / "checkpoints")
        except OSError:
            return []
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))

    def newest(self):
        return max(self.checkpoints(), default=None)

    def announced(self):
        """The newest checkpoint that this attempt says it saved or went on from."""
        steps = re.findall(r"(?:saved|from) \S*/checkpoints/step-(\d+)", self.text())
        return int(steps[-1]) if steps else None

    def tensors(self, step):
        folder = self.output_dir / "checkpoints" / f"step-{step}"
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.safetensors"))}

    def reset(self):
        shutil.rmtree(self.output_dir, ignore_errors=True)
        for log in self.folder.glob("attempt-*.log"):
            log.unlink()

    # Laws.

    def check_ended(self, verdict, seconds=END_SECONDS):
        """The attempt ends in time and leaves no process and no file behind. Its exit code."""
        code = self.wait(seconds)
        other_node, self.other_node = self.other_node, None
        if code is not None and other_node:
            of_other = exit_of(other_node, seconds + LOST_LAUNCHER_SECONDS)
            code = None if of_other is None else code or of_other
        if code is None:
            verdict.late.append(f"still running {seconds} s later")
            self.end_all()
            return None
        limit = time.monotonic() + 5
        while (left := processes_of(self.mark)) and time.monotonic() < limit:
            time.sleep(0.01)
        if left:
            verdict.left_behind.append(f"processes {sorted(left)}")
            self.end_all()
        if files := os.listdir(self.temporary):
            verdict.left_behind.append(f"files {files} in TMPDIR")
            shutil.rmtree(self.temporary)
            self.temporary.mkdir()
        return code

    def check_kept(self, verdict):
        """Saved is saved."""
        announced = self.announced()
        if announced is not None and announced > (self.newest() or 0):
            verdict.lost.append(f"step {announced} was saved, {self.newest()} is the newest")

    def check_finished(self, verdict):
        """The numbers are those of the undisturbed run. The next attempt begins a new one."""
        records, tensors = self.records(), self.tensors(STEPS)
        for step, expected in self.expected.items():
            if records.get(step) != expected:
                verdict.wrong.append(f"step {step} has {records.get(step)}, undisturbed {expected}")
                break
        if tensors != self.final:
            verdict.wrong.append("the last checkpoint differs from the undisturbed run's")
        temporaries = [name for name in os.listdir(self.output_dir / "checkpoints") if ".tmp" in name]
        if temporaries:
            verdict.left_behind.append(f"{temporaries} in checkpoints/")
        self.reset()

    def tail(self):
        return " | ".join(self.text().splitlines()[-3:])[:600]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def limited_file_size(size_bytes):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


class Beside(threading.Thread):
    """Calls `work` again and again until `stop`."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self.work, self.ended = work, threading.Event()
        self.start()

    def run(self):
        while not self.ended.is_set():
            self.work()

    def stop(self):
        self.ended.set()
        self.join(30)
