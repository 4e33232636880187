"""Runs a plan's stages, one command after another, within the time of the call.

A stage ends by the sum of its seconds and those of the stages before it in the plan. A command is begun where its usual
time is left of that, and is ended at its own limit or at the stage's end, whichever comes first.
"""
import os
import shlex
import sys
import time

from command import GRACE_SECONDS, Verdict, run as run_command
from stages import commands_of
from summary import page

DONE = ("passed", "failed", "over limit")


class Clock:
    """The time of this call, and whether it was asked to stop."""

    def __init__(self):
        self._begin, self._seconds, self._stopped = time.monotonic(), 0.0, False

    def give(self, seconds):
        self._seconds = seconds

    def stop(self):
        self._stopped = True

    def stopped(self):
        return self._stopped

    def used(self):
        return time.monotonic() - self._begin

    def left(self):
        """Seconds for commands: their ends and the last page have theirs."""
        return max(0.0, self._seconds - self.used() - GRACE_SECONDS - 1)


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(stages, setting, results, maker, clock):
    """Returns [(stage, seconds, names of its commands)]."""
    layouts = {stage: list(commands_of(stage, setting)) for stage, _ in stages}
    planned = [(stage, seconds, [command.name for command in layouts[stage]]) for stage, seconds in stages]
    to_do = {stage: [c for c in layouts[stage] if results.state(f"{stage}/{c.name}") not in DONE] for stage, _ in stages}
    maker.order(dict.fromkeys(c.model for stage, _ in stages for c in to_do[stage] if c.model and not c.lacks))
    end_of_stage = 0.0
    try:
        for stage, seconds in stages:
            end_of_stage += seconds
            say(f"== {stage}: {len(to_do[stage])} of {len(layouts[stage])} commands to run, {max(0.0, end_of_stage - clock.used()):.0f} s")
            for command in to_do[stage]:
                run_one(f"{stage}/{command.name}", command, end_of_stage, results, maker, clock)
                maker.advance()
                results.write_summary(page(planned, results))
    finally:
        maker.end()
    return planned


def run_one(key, command, end_of_stage, results, maker, clock):
    def left():
        return min(clock.left(), end_of_stage - clock.used())

    def not_run(state, reason):
        say(f"{key}: {state}: {reason}")
        results.end(key, state=state, reason=reason)

    if clock.stopped():
        return not_run("not reached", "the runner was asked to stop")
    if command.lacks:
        return not_run("lacks", command.lacks)
    if left() < command.usual_seconds:
        return not_run("not reached", f"it usually takes {command.usual_seconds:g} s, and {max(0.0, left()):.0f} s are left")
    if command.model and not maker.wait(command.model, time.monotonic() + left() - command.usual_seconds, clock.stopped):
        if command.model in maker.problems:
            return not_run("lacks", maker.problems[command.model])
        return not_run("not reached", f"the model {command.model} was not ready in time")
    stdout, stderr = results.log_paths(key)
    results.begin(key, command_line(command), stdout, stderr)
    beside = maker.busy_with
    outcome = run_command(command, min(command.limit_seconds, left()), os.path.join(results.folder, stdout),
                          os.path.join(results.folder, stderr), clock.stopped)
    state, reason, verdict = judged(command, outcome, results)
    say(f"{key}: {state}, {outcome.seconds:.1f} s" + (f": {reason}" if reason else ""))
    figures = dict(verdict.figures)
    if beside:
        figures["beside"] = f"the model {beside} was being made"
    if command.model and maker.label(command.model) != command.model:
        figures["model"] = maker.label(command.model)
    results.end(key, rows=verdict.rows, state=state, reason=reason, exit_code=outcome.exit_code, seconds=round(outcome.seconds, 2), figures=figures)


def judged(command, outcome, results):
    try:
        verdict = command.judge(outcome, results.figures())
    except Exception as error:  # noqa: BLE001: output that no one foresaw must not end the run
        verdict = Verdict(f"its output could not be read: {type(error).__name__}: {error}")
    if outcome.ended:
        why = {"limit": f"it ran longer than its limit of {command.limit_seconds:g} s and was ended",
               "time": f"the time was over after {outcome.seconds:.0f} s", "stop": "the runner was asked to stop"}[outcome.ended]
        return "over limit" if outcome.ended == "limit" else "cut off", why, verdict
    if verdict.lacks:
        return "lacks", verdict.lacks, verdict
    return "failed" if verdict.problem else "passed", verdict.problem, verdict


def command_line(command):
    return shlex.join([*(f"{name}={value}" for name, value in command.environment.items()), *command.argv])
