"""One command of a stage, and how it is run: under guard.py, with a limit, its output in files.

A command's state when it is over:

    passed      it ended as expected, and its judge found nothing wrong
    failed      it did not, or its judge did
    over limit  it ran longer than its own limit and was ended
    cut off     the time of the stage or of the call was over, or the runner was asked to stop; it is run again next time
    lacks       something that it needs is not here, such as a GPU
"""
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Callable, Optional

GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
GRACE_SECONDS = 6  # until a command that was asked to end is gone; guard.py kills after 5


@dataclass(frozen=True)
class Command:
    name: str
    argv: list
    limit_seconds: float  # the command is ended then
    usual_seconds: float  # the command is not begun where less time is left
    environment: dict = field(default_factory=dict)
    model: str = ""  # made in the background (models.py); waited for
    lacks: str = ""  # what is not here; the command is then not run
    judge: Optional[Callable] = None  # judge(Outcome, figures of other commands by "stage/name") -> Verdict


@dataclass(frozen=True)
class Outcome:
    exit_code: Optional[int]  # negative: ended by that signal
    ended: str  # "": by itself; else why it was ended: "limit", "time", "stop"
    seconds: float
    stdout: str
    stderr: str

    def json_lines(self):
        """The objects among the lines of stdout."""
        lines = []
        for line in self.stdout.splitlines():
            if line.startswith("{"):
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    pass  # a line that was cut off
        return lines


@dataclass(frozen=True)
class Verdict:
    problem: str = ""  # what is wrong; "" when all is well
    figures: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)  # measurements that are many: one object each
    lacks: str = ""  # the command found out itself that something is not here


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def describe_exit(code):
    if code is None:
        return "ended early"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def exit_problem(outcome, expected=0):
    if outcome.exit_code == expected:
        return ""
    wanted = "" if expected == 0 else f", expected exit code {expected}"
    return f"{describe_exit(outcome.exit_code)}{wanted}: {last_line(outcome.stderr or outcome.stdout)}"


class Guarded:
    """A child under guard.py. It ends, with all that it started, when `end` is called or this process is gone."""

    def __init__(self, argv, environment, stdout_path, stderr_path):
        with open(stdout_path, "wb") as out, open(stderr_path, "wb") as err:
            self._process = subprocess.Popen([sys.executable, GUARD, *argv], stdin=subprocess.PIPE, stdout=out, stderr=err,
                                             env={**os.environ, **environment}, start_new_session=True)

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code > 128 else code

    def end(self):
        """Ends it, and waits until it is gone."""
        self._process.stdin.close()
        self._process.wait()


def text_of(path):
    with open(path, errors="replace") as file:
        return file.read()


def run(command, limit_seconds, stdout_path, stderr_path, stop_requested):
    """Runs a command to its end, or for `limit_seconds`, or until `stop_requested()`."""
    begin = time.monotonic()
    child = Guarded(command.argv, command.environment, stdout_path, stderr_path)
    ended, code = "", None
    try:
        while (code := child.poll()) is None:
            if stop_requested():
                ended = "stop"
            elif time.monotonic() - begin > limit_seconds:
                ended = "limit" if limit_seconds >= command.limit_seconds else "time"
            if ended:
                break
            time.sleep(0.05)
    finally:
        child.end()
    return Outcome(code, ended, time.monotonic() - begin, text_of(stdout_path), text_of(stderr_path))
