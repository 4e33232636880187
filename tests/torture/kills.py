"""SIGKILL at random moments: of a rank, of a launcher, of everything; with and without --max_restarts, with one launcher and two."""

import os
import signal

from training_run import END_SECONDS, LOST_LAUNCHER_SECONDS, RANKS, STEPS, processes_of, send


def attack(arena, random, verdict):
    target = random.choice(["launcher", "everything", *range(RANKS)])
    restarts = isinstance(target, int) and random.random() < 0.4
    nodes = random.choice([1, 1, 1, 2])
    command = arena.command(*(["--save_in_background"] if random.random() < 0.5 else []))
    arena.start(*(["--max_restarts", "1"] if restarts else []), nodes=nodes, command=command)
    moment = arena.wait_for_moment(random)
    if moment is None:
        code = arena.check_ended(verdict)
        if code != 0:
            verdict.wrong.append(f"ended with {code} before the attack: {arena.tail()}")
        arena.check_finished(verdict)
        return "ended before"
    pids = arena.rank_pids()
    if isinstance(target, int) and target not in pids:
        target = "launcher"  # so early that it has not started this rank
        restarts = False
    if target == "launcher":
        os.kill(random.choice([arena.process, arena.other_node or arena.process]).pid, signal.SIGKILL)
    elif target == "everything":
        send(processes_of(arena.mark), signal.SIGKILL)
    else:
        os.kill(pids[target], signal.SIGKILL)
    code = arena.check_ended(verdict, 120 if restarts else END_SECONDS + (LOST_LAUNCHER_SECONDS if nodes == 2 else 0))
    what = f"{moment}, {'rank ' if isinstance(target, int) else ''}{target}{', restart' if restarts else ''}{', two launchers' if nodes == 2 else ''}"
    if isinstance(target, int) and code is not None:
        if f"rank {target}" not in arena.text() or "signal 9" not in arena.text():
            if arena.last_step() < STEPS:  # else it may have been done
                verdict.unnamed.append(f"{what}: {arena.tail()}")
        if restarts and code != 0:
            verdict.lost.append(f"{what}: not started again, exit {code}: {arena.tail()}")
    arena.check_kept(verdict)
    if code == 0:
        arena.check_finished(verdict)
    return what
