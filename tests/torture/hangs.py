"""SIGSTOP of one rank, at start, in training, in a save: the run ends by its timeout and names that rank."""

import os
import re
import signal

from training_run import RANKS


def attack(arena, random, verdict):
    arena.start()
    moment = arena.wait_for_moment(random)
    rank = random.randrange(RANKS)
    pid = arena.rank_pids().get(rank)
    if moment is None or pid is None:
        code = arena.check_ended(verdict, 120)
        if code == 0:
            arena.check_finished(verdict)
        return "ended before"
    os.kill(pid, signal.SIGSTOP)
    code = arena.check_ended(verdict)
    what = f"{moment}, rank {rank} stopped"
    summary = arena.text().split("trireme launch:", 1)
    named = len(summary) == 2 and re.search(rf"\brank {rank}\b", summary[1].splitlines()[0])
    if code not in (None, 0) and not named:
        verdict.unnamed.append(f"{what}: {summary[-1][:300]}")
    arena.check_kept(verdict)
    if code == 0:  # it was done
        arena.check_finished(verdict)
    return what
