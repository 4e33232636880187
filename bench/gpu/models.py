"""Models that stages need, made one after another in the background while the first stages run.

A model is whole when its folder has its name: it is written beside and renamed. Models are not results: they lie in the
scratch folder, are found there by a later call, and may be lost.
"""
import functools
import os
import shutil
import subprocess
import time

from command import Guarded, last_line, text_of

WIDE = ["--preset", "llama3-8b", "--set", "num_hidden_layers=4", "--set", "vocab_size=32000"]  # four layers of 8B's width
EXPERTS = ["--preset", "qwen3-30b-a3b", "--set", "num_hidden_layers=6"]  # 4.4 billion parameters: 57 GiB updated in backward
MODELS = {
    "cuda": {"8b": ["--preset", "llama3-8b", "--dtype", "bfloat16"], "wide4": [*WIDE, "--dtype", "bfloat16"],
             "experts6": [*EXPERTS, "--dtype", "bfloat16"]},
    "cpu": {"8b": ["--preset", "tiny"], "wide4": ["--preset", "tiny", "--set", "num_hidden_layers=4"], "experts6": ["--preset", "tiny-qwen3-moe"]},
}
GIB_NEEDED = {"cuda": {"8b": 17, "wide4": 3, "experts6": 9}, "cpu": {"8b": 0, "wide4": 0, "experts6": 0}}
# 14 bytes a parameter, updated in backward: all of 8B takes 105 GiB before any activation, half of its layers 59.
LEAST_GPU_GIB_OF_8B = 120
HALF_OF_8B = ["--set", "num_hidden_layers=16"]


@functools.lru_cache
def gpu_gib():
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout) / 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return LEAST_GPU_GIB_OF_8B  # unknown


def is_halved(device, name):
    return device == "cuda" and name == "8b" and gpu_gib() < LEAST_GPU_GIB_OF_8B


def label(device, name):
    """Of the folder and of the results' key: they tell how many layers there are."""
    return name + ("-16-layers" if is_halved(device, name) else "")


def words_of(device, name):
    """Of `trireme init`."""
    return [*MODELS[device][name], *(HALF_OF_8B if is_halved(device, name) else [])]


class ModelMaker:
    def __init__(self, layout, device, results):
        self._layout, self._device, self._results = layout, device, results
        self._waiting, self._child, self._making, self._begin = [], None, "", 0.0
        self.problems = {}

    def folder(self, name):
        return os.path.join(self._layout.scratch, f"{self._device}-{self.label(name)}")

    def label(self, name):
        return label(self._device, name)

    def _key(self, name):
        return f"models/{self.label(name)}"

    def has(self, name):
        return os.path.isdir(self.folder(name))

    @property
    def busy_with(self):
        return self._making

    def order(self, names):
        self._waiting = [name for name in names if not self.has(name)]
        self.advance()

    def advance(self):
        """Looks after the model under way, and begins the next one."""
        if self._making:
            code = self._child.poll()
            if code is None:
                return
            self._child.end()
            self._finish(code)
        while self._waiting and not self._making:
            self._begin_one(self._waiting.pop(0))

    def _begin_one(self, name):
        part = self.folder(name) + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(self._layout.scratch, exist_ok=True)
        free_gib = shutil.disk_usage(self._layout.scratch).free / 2**30
        key = self._key(name)
        if free_gib < GIB_NEEDED[self._device][name]:
            self.problems[name] = (f"{self._layout.scratch} has {free_gib:.0f} GiB free, the model takes {GIB_NEEDED[self._device][name]}; "
                                   "give another --scratch")
            self._results.end(key, state="lacks", reason=self.problems[name])
            return
        argv = [self._layout.program, "init", *words_of(self._device, name), "--seed", "1", "--out", part]
        out, err = self._results.log_paths(key)
        self._results.begin(key, " ".join(argv), out, err)
        self._making, self._begin = name, time.monotonic()
        self._errors = os.path.join(self._results.folder, err)
        self._child = Guarded(argv, {}, os.path.join(self._results.folder, out), self._errors)

    def _finish(self, code):
        name, self._making = self._making, ""
        key = self._key(name)
        seconds = time.monotonic() - self._begin
        if code == 0:
            os.rename(self.folder(name) + ".part", self.folder(name))
            self._results.end(key, state="passed", reason="", exit_code=0, seconds=seconds)
            return
        self.problems[name] = f"the model could not be made, exit code {code}: {last_line(text_of(self._errors))}"
        self._results.end(key, state="failed", reason=self.problems[name], exit_code=code, seconds=seconds)

    def wait(self, name, until, stop_requested):
        """Whether the model is there at `until` (time.monotonic)."""
        while not self.has(name) and name not in self.problems and time.monotonic() < until and not stop_requested():
            self.advance()
            time.sleep(0.05)
        return self.has(name)

    def end(self):
        if self._making:
            self._child.end()
            self._results.end(self._key(self._making), state="cut off", reason="the call was over", seconds=time.monotonic() - self._begin)
            self._making = ""
