"""The native engine from Python: `trireme train` with its metrics as they come.

    options --words--> trireme [launch ... --] train  --OUTPUT_DIR/metrics.jsonl-->  Step, Evaluation, ...

The program owns its options and refuses what it does not know; nothing of them is repeated here.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import warnings
import weakref
from typing import Any, Callable, Mapping, Optional, Union

from .engine_process import EngineProcess
from .errors import REQUEST_AT_FAULT, STOPPED, ConfigError, RunFailed
from .metrics_file import MetricsFile, Record

LOOK_SECONDS = 0.05  # between two looks at the metrics
SAYS_STOPPED = "trireme: asked to stop"


def train(
    *,
    output_dir: Union[str, os.PathLike],
    nproc: Optional[int] = None,
    launch: Optional[Mapping[str, Any]] = None,
    binary: Union[str, os.PathLike, None] = None,
    stop_seconds: float = 1800,
    log: Optional[Callable[[str], object]] = None,
    **options: Any,
) -> TrainingRun:
    """``for record in trireme.train(model_name_or_path=..., train_file=..., output_dir=..., max_steps=...)``.

    Starts `trireme train` beside this process, which stays free of ranks and of groups: call it in one process.

    options: those of `trireme train` under their own names (docs/options.md). True and False are written so, None is
        left out, a mapping or a list of mappings is given as JSON, a list of texts with commas.
    output_dir: the run's folder, whose metrics.jsonl is read: this machine must see it.
    nproc: ranks on this machine, started by `trireme launch`. launch: more of its flags, as max_restarts=3, hostfile=...
    binary: the program; see :func:`engine_binary`.
    stop_seconds: how long a stopped run may take to finish its step and save before it is killed.
    log: called with each line that the program prints, from a thread. Its warnings become Python's without it.

    Returns the run, an iterator of :class:`Step` and, where the options ask for evaluations, :class:`Evaluation`. A run
    that is started again by max_restarts tells the steps since its checkpoint again. Raises ConfigError with the
    program's words where it refuses the request, from the iterator, and RunFailed for another end but done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"trireme.train starts the ranks by itself (nproc=...): call it in one process, got WORLD_SIZE={os.environ['WORLD_SIZE']}")
    words = [engine_binary(binary)]
    if nproc is not None or launch is not None:
        flags = {"nproc_per_node": nproc, "stop_seconds": max(1, round(stop_seconds)), **(launch or {})}
        words += ["launch", *_words(flags), "--"]
    words += ["train", *_words({**options, "output_dir": output_dir})]
    return TrainingRun(words, pathlib.Path(output_dir), stop_seconds, log)


def engine_binary(binary: Union[str, os.PathLike, None] = None) -> str:
    """The path of the program `trireme`: what is given, else TRIREME_BINARY of the environment, else by PATH."""
    for origin, named in (("binary", binary), ("TRIREME_BINARY", os.environ.get("TRIREME_BINARY"))):
        if named:
            found = shutil.which(os.fspath(named))
            if found is None:
                raise ConfigError(f"trireme: {origin} is {named}, expected a program that can be run")
            return found
    if found := shutil.which("trireme"):
        return found
    raise ConfigError(
        "trireme: its program was not found: no binary=... was given, TRIREME_BINARY is not set, and no `trireme` is on the PATH. "
        "The Python package does not hold it: build it by `./dev build cpu trireme` in the repository (build/cpu/bin/trireme), or "
        "unpack a package of `./dev dist`"
    )


class TrainingRun:
    """A run of the engine. Leaving its `with` block, closing it or letting go of it stops the run, which saves first."""

    def __init__(self, words: list[str], output_dir: pathlib.Path, stop_seconds: float, log: Optional[Callable[[str], object]]):
        self.output_dir = output_dir
        self._warn = log is None
        self._told = False
        self._metrics = MetricsFile(output_dir / "metrics.jsonl")
        self._process = EngineProcess(words, log)
        self._end = weakref.finalize(self, _end_untold, self._process, self._metrics, stop_seconds)  # also when the interpreter leaves
        self._stop_seconds = stop_seconds

    @property
    def exit_code(self) -> Optional[int]:
        """None while the run goes on."""
        return self._process.exit_code

    def __iter__(self) -> TrainingRun:
        return self

    def __next__(self) -> Record:
        while not self._told:
            ended = self._process.wait(0)  # before the look, which then sees all
            record = self._metrics.read()
            self._pass_warnings()
            if record is not None:
                return record
            if ended:
                self._tell_end()
            else:
                self._process.wait(LOOK_SECONDS)
        raise StopIteration

    def stop(self) -> None:
        """Asks the run to finish its step, save and end; the iterator goes on with what it still reports."""
        self._process.ask_to_stop()

    def close(self) -> None:
        """Stops the run and waits for its end. Raises what the iterator would for a run that had failed by itself."""
        if self._process.end(self._stop_seconds) and not self._told:
            self._tell_end()

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, kind: Optional[type], *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._told = True  # by a warning, where it failed
            self._end()  # the caller's exception goes on

    def _pass_warnings(self) -> None:
        for line in self._process.take_lines_of("trireme: warning: "):
            if self._warn:
                warnings.warn(line, stacklevel=3)

    def _tell_end(self) -> None:
        self._told = True
        self._end.detach()
        self._metrics.close()
        failure = _failure_of(self._process)
        self._pass_warnings()
        if failure is not None:
            raise failure


def _end_untold(process: EngineProcess, metrics: MetricsFile, stop_seconds: float) -> None:
    """Where nobody can be told by an exception, a run that failed is a warning: what it was to save may be lost."""
    metrics.close()
    if process.end(stop_seconds) and (failure := _failure_of(process)) is not None:
        warnings.warn(f"a run of trireme.train that was let go of had failed: {failure}", stacklevel=2)


def _failure_of(process: EngineProcess) -> Optional[Exception]:
    """None for a run that is done, or stopped when it was asked to."""
    code, lines = process.end_of_run()
    text = "\n".join(lines)
    if code == 0 or (process.asked_to_stop and (code == -signal.SIGTERM or (code == STOPPED and SAYS_STOPPED in text))):
        return None
    if code == REQUEST_AT_FAULT:
        said = re.search(r"ConfigError: (.*?)(\ntrireme launch: .*)?$", text, re.DOTALL)
        return ConfigError(said[1] if said else text)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return RunFailed(f"trireme train {how} (docs/launching.md). Its last lines:\n{text}", code, lines)


def _words(flags: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={_text(value)}" for name, value in flags.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)) and all(isinstance(part, (str, os.PathLike)) for part in value):
        return ",".join(map(os.fspath, value))
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else str(value)
