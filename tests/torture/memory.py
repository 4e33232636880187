"""A rank that gets no more memory, at a random moment: the run ends and says whose memory, or finishes with its numbers."""

import re
import resource

from training_run import CONFIG_EXIT, RANKS


def data_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmData:\s+(\d+) kB", status.read())[1]) * 1024


def attack(arena, random, verdict):
    arena.start()
    moment = arena.wait_for_moment(random, ("training", "save"))
    rank = random.randrange(RANKS)
    pid = arena.rank_pids().get(rank)
    what = "ended before"
    if moment is not None and pid is not None:
        room = int(random.choice([0, 1e5, 1e6, 4e6, 1e7]))
        try:
            limit = data_bytes(pid) + room
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
            what = f"{moment}, rank {rank} gets {room:,} bytes more"
        except (OSError, TypeError):  # it ended between the two lines
            pass
    code = arena.check_ended(verdict, 120)
    if code not in (None, 0):
        said = arena.text()
        # A library that cannot report ends the process by a signal; the launcher then names the rank.
        if not re.search(r"memory|bad_alloc", said) or f"rank {rank}" not in said:
            verdict.unnamed.append(f"{what}: exit {code}: {arena.tail()}")
        if code not in (CONFIG_EXIT, 75, 134):
            verdict.wrong.append(f"{what}: exit {code}: {arena.tail()}")
    arena.check_kept(verdict)
    if code == 0:
        arena.check_finished(verdict)
    return what
