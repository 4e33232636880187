"""What every benchmark here begins with: the program, the model, what a run printed, and the rows to go on from."""
import datetime
import hashlib
import json
import os
import subprocess
import sys

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("TRIREME_BINARY") or os.path.join(ROOT, "build/cpu/bin/trireme")
OPERATORS = os.environ.get("TRIREME_OPERATORS") or os.path.join(ROOT, "build/cpu/lib/libtrireme_operators.so")


def say(text):
    print(text, file=sys.stderr, flush=True)


def tokens(text):
    return int(text[:-1]) << 10 if text[-1:] in "kK" else int(text)


def choices(text, known):
    names = text.split(",")
    for name in names:
        if name not in known:
            sys.exit(f"bench: '{name}' is unknown; expected some of {','.join(known)}")
    return names


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()


def need_binary():
    if not os.path.exists(BINARY):
        sys.exit(f"bench: {BINARY} is missing; ./dev bench builds it")


def make_model(preset="small", name="", **changes):
    """In build/bench/NAME, or PRESET, where it is not there yet; `changes` are of its config.json."""
    folder = os.path.join(ROOT, "build/bench", name or preset)
    if not os.path.exists(os.path.join(folder, "config.json")):
        say("making the model")
        sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        subprocess.run([BINARY, "init", "--preset", preset, *sets, "--seed", "0", "--overwrite", "--out", folder], check=True,
                       stdout=subprocess.DEVNULL)
    return folder


def make_adapter(model, rank):
    """A fresh LoRA adapter of all projections, by PEFT."""
    folder = f"{model}-lora{rank}"
    if not os.path.exists(os.path.join(folder, "adapter_config.json")):
        say("making the adapter")
        subprocess.run([os.path.join(ROOT, ".deps/python/bin/python"), os.path.join(ROOT, "bench/peers/hf_single.py"), "--model", model,
                        "--adapter", folder, "--make-adapter", str(rank)], check=True)
    return folder


def parameter_count(folder):
    size = os.path.getsize(os.path.join(folder, "model.safetensors"))
    return f"{size / 4e6:.1f}M"


def header_of(model, command, **more):
    """The first line of a file of rows: when, where, with which build."""
    with open(BINARY, "rb") as file:
        binary = hashlib.sha256(file.read()).hexdigest()[:16]
    return {"date": str(datetime.date.today()), **more, "machine": machine.describe(), "binary": binary,
            "commit": git("describe", "--always", "--dirty"), "parameters": parameter_count(model),
            "command": " ".join([command, *sys.argv[1:]])}


class Results:
    """The rows so far, kept in a file from which the same command goes on."""

    def __init__(self, path, header, must_equal):
        """Goes on from the file where there is one; `must_equal` are the names in its header that must be as now."""
        self.path, self.rows = path, []
        if not os.path.exists(path):
            self.header = header
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._append({"header": header})
            return
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.strip()]
        self.header, self.rows = lines[0]["header"], lines[1:]
        for name in must_equal:
            if self.header.get(name) != header[name]:
                sys.exit(f"bench: {path} was begun with another {name}; only runs of one build on one machine compare. "
                         f"Give another --out, or remove that file")

    def _append(self, row):
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def add(self, row):
        self.rows.append(row)
        self._append(row)

    def has(self, key):
        return any(row["key"] == key for row in self.rows)


def result_of(code, out, err, limit_minutes, warmup):
    """The JSON line that a run printed, and why it failed."""
    for line in reversed(out.splitlines()):
        if line.startswith("{") and code == 0:
            row = json.loads(line.replace(ROOT + os.sep, ""))  # no paths of one machine in what is kept
            row.pop("versions", None)
            load = row.pop("load", None)
            if load:  # the peers give cores used and seconds, from the end of the warm-up
                row["cpu_s_per_step"] = load["own_cores"] * load["wall_s"] / (len(row["step_s"]) - warmup)
            return row, None
    if code is None:
        return {}, f"over {limit_minutes:g} minutes"
    if code in (-9, 137) or "SIGKILL" in err or "exitcode: -9" in err or "emory" in err[-3000:]:
        return {"stderr": err[-2000:]}, "out of memory"
    return {"stderr": err[-2000:]}, f"exit code {code}"
