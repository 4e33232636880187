"""Requests to stop at random moments: every signal that asks, one and two of them, to the launcher, to a rank, to all; and
as they come in real life: GNU timeout, a terminal that closes, a reader that goes (| head), a scheduler's warning."""

import os
import pty
import signal
import subprocess
import time

from training_run import END_SECONDS, MARK, RANKS, STOP_EXIT, processes_of, send

ASKING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT]


def check_stopped(arena, verdict, moment, what, exits=(STOP_EXIT,)):
    """A run that trained has saved its last step; one in start-up has ended at once. Either says so by its exit code."""
    code = arena.check_ended(verdict)
    arena.check_kept(verdict)
    if code == 0:  # the request came with the last step
        arena.check_finished(verdict)
        return
    if code is None:
        return
    if "starting all ranks again" in arena.text():
        verdict.wrong.append(f"{what}: started again: {arena.tail()}")
    # So early that the program had not taken the signal over yet: it ends a process as signals do.
    untaken = moment == "start" and (code in [-n for n in ASKING] or code in [128 + n for n in ASKING])
    if code not in exits and not untaken:
        verdict.wrong.append(f"{what}: exit {code}: {arena.tail()}")
    trained = arena.last_step()
    if moment != "start" and trained != (arena.newest() or 0):
        verdict.lost.append(f"{what}: trained to step {trained}, saved {arena.newest()}: {arena.tail()}")


def plain(arena, random, verdict):
    arena.start(*random.choice([[], ["--max_restarts", "1"]]))  # what was asked to stop is not started again
    moment = arena.wait_for_moment(random)
    if moment is None:
        arena.check_ended(verdict)
        arena.check_finished(verdict)
        return "ended before"
    target = random.choice(["launcher", "all", *range(RANKS)])
    ranks = arena.rank_pids()
    pids = {"launcher": [arena.process.pid], "all": [arena.process.pid, *ranks.values()]}.get(target) or [ranks.get(target)]
    if pids == [None]:
        target, pids = "launcher", [arena.process.pid]
    first, second = random.choice(ASKING), random.choice([None, *ASKING])
    send(pids, first)
    if second is not None:
        time.sleep(random.choice([0, 0.005, 0.1, 1]))  # beyond 2 s it is a request of its own, to end at once
        send(pids, second)
    names = first.name + (f" {second.name}" if second else "")
    what = f"{moment}, {names} to {target}"
    check_stopped(arena, verdict, moment, what)
    return what


def gnu_timeout(arena, random, verdict):
    seconds = arena.start_seconds + random.uniform(0, 1)
    number = random.choice(["TERM", "INT", "HUP"])
    arena.start(before=["timeout", "--signal", number, f"{seconds:.3f}"])
    if arena.wait(seconds + END_SECONDS) is None:
        verdict.late.append("under GNU timeout")
    # It says 124 whatever the run says; a run that was starting has nothing to save.
    moment = "training" if "step " in arena.text() and arena.last_step() else "start"
    check_stopped(arena, verdict, moment, f"timeout -s {number}", exits=(124, STOP_EXIT))
    return "GNU timeout"


def closed_terminal(arena, random, verdict):
    controller, terminal = pty.openpty()
    arena.log = arena.folder / "attempt-terminal.log"
    arena.log.write_text("")
    # `setsid --ctty` gives the run this terminal, as a window does; closing the other end is what a lost window does.
    command = ["setsid", "--ctty", "--wait", arena.binary, "launch", "--nproc_per_node", RANKS, "--", *arena.command()]
    env = os.environ | {MARK: arena.mark, "OMP_NUM_THREADS": "1", "TMPDIR": str(arena.temporary)}
    arena.process = subprocess.Popen([str(w) for w in command], env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.set_blocking(controller, False)
    closes = False

    def read():
        try:
            output = os.read(controller, 65536)
        except OSError:
            return
        with open(arena.log, "ab") as log:
            log.write(output)

    goal = (arena.newest() or 0) + random.randint(1, 12)
    stale = arena.last_step()  # of an attempt before, which may have ended before it saved
    begun = stale == (arena.newest() or 0)
    limit = time.monotonic() + 60
    while arena.process.poll() is None and time.monotonic() < limit:
        read()
        begun = begun or arena.last_step() != stale
        if begun and arena.last_step() >= goal:
            closes = True
            break
        time.sleep(0.001)
    read()  # what it said last
    os.close(controller)
    check_stopped(arena, verdict, "training", "closed terminal" if closes else "terminal")
    return "closed terminal"


def head(arena, random, verdict):
    """A reader that goes does not end training."""
    reading, writing = os.pipe()
    arena.start(output=writing)
    os.close(writing)
    with open(reading, "rb") as reader:
        for _ in range(random.randint(1, 6)):
            reader.readline()
    code = arena.check_ended(verdict, 120)
    if code != 0:
        verdict.wrong.append(f"| head: exit {code}")
        if arena.last_step() != (arena.newest() or 0):
            verdict.lost.append(f"| head: trained to step {arena.last_step()}, saved {arena.newest()}")
    else:
        arena.check_finished(verdict)
    return "| head"


def scheduler(arena, random, verdict):
    """Slurm's --signal=USR1@60: a warning to all of a step's processes, SIGKILL when the time is over."""
    arena.start("--max_restarts", "1")
    moment = arena.wait_for_moment(random, ("training", "save"))
    number = random.choice([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
    if moment is not None:
        send([arena.process.pid, *arena.rank_pids().values()], number)
    if arena.wait(END_SECONDS) is None:
        verdict.late.append("did not end between the warning and the end of its time")
        send(processes_of(arena.mark), signal.SIGKILL)
    check_stopped(arena, verdict, moment or "start", f"scheduler's {number.name}")
    return "scheduler"


def attack(arena, random, verdict):
    kind = random.choices([plain, gnu_timeout, closed_terminal, head, scheduler], [12, 2, 2, 1, 2])[0]
    return kind(arena, random, verdict)
