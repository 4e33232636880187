"""Strangers: garbage at every port of a run, a stranger at the port where rank 0 should be, a rank with another secret."""

import os
import socket
import struct
import time

from training_run import CONFIG_EXIT, DDP_TIMEOUT_SECONDS, END_SECONDS, RANKS, STOP_EXIT, Beside, exit_of, free_port, processes_of, start_marked


def listening_ports(mark):
    """Ports at which processes of this mark listen: (address in hexadecimal, port)."""
    inodes = set()
    for pid in processes_of(mark):
        try:
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = open(table).read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def garbage(random):
    kinds = [
        random.randbytes(random.randint(1, 4096)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("<I", 0x3C85F7CE) + random.randbytes(64),  # TCPStore's first word, then nonsense
        struct.pack("<Q", 2**63) + b"\0" * 32,
        b"",
    ]
    return random.choice(kinds)


def garbage_at_every_port(arena, random, verdict):
    arena.start()
    held, sent, open_to_all = [], [0], set()

    def disturb():
        for address, port in listening_ports(arena.mark):
            if set(address) == {"0"}:
                open_to_all.add(port)
            try:
                stranger = socket.create_connection(("127.0.0.1", port), 1)
                stranger.sendall(garbage(random))
                sent[0] += 1
                held.append(stranger)
            except OSError:
                continue
            while len(held) > 40:
                held.pop(random.randrange(len(held))).close()
        time.sleep(0.002)

    strangers = Beside(disturb)
    code = arena.check_ended(verdict, 180)
    strangers.stop()
    for stranger in held:
        stranger.close()
    if open_to_all:
        verdict.wrong.append(f"a run on one machine listens on all interfaces: {sorted(open_to_all)}")
    if code != 0:
        verdict.lost.append(f"garbage ended the run: exit {code}: {arena.tail()}")
        arena.reset()
    else:
        arena.check_finished(verdict)
    return f"{sent[0]} connections of garbage"


def hand_started(arena, rank, port, secret):
    environment = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TRIREME_SECRET": secret,
                   "TMPDIR": str(arena.temporary)}
    log = arena.folder / f"attempt-{rank}-{secret[:4]}-{time.monotonic_ns()}.log"
    with open(log, "wb") as output:
        return start_marked([arena.binary, *arena.command()], arena.mark, output, environment), log


def stranger_at_the_port(arena, random, verdict):
    speaks = random.choice(["nothing", "garbage", "closes"])
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        port = server.getsockname()[1]

        def answer():
            server.settimeout(0.2)
            try:
                peer = server.accept()[0]
                if speaks == "garbage":
                    peer.sendall(random.randbytes(500))
                if speaks == "closes":
                    peer.close()
                else:
                    held.append(peer)
            except OSError:
                pass

        held = []
        strangers = Beside(answer)
        process, log = hand_started(arena, 1, port, "ab" * 32)
        arena.process, arena.log = process, log
        code = arena.check_ended(verdict, END_SECONDS)
        strangers.stop()
        for peer in held:
            peer.close()
    if code is not None and code not in (STOP_EXIT, CONFIG_EXIT):
        verdict.wrong.append(f"stranger who says {speaks}: exit {code}: {arena.tail()}")
    if code is not None and f"127.0.0.1:{port}" not in arena.text():
        verdict.unnamed.append(f"stranger who says {speaks}: {arena.tail()}")
    arena.reset()
    return f"a stranger at rank 0's port says {speaks}"


def other_secret(arena, random, verdict):
    port = free_port()
    secret = random.randbytes(32).hex()
    others = random.choice([random.randbytes(32).hex(), ""])
    true_0, log_0 = hand_started(arena, 0, port, secret)
    time.sleep(random.uniform(0, 0.3))
    false_1, log_false = hand_started(arena, 1, port, others)
    code = exit_of(false_1, DDP_TIMEOUT_SECONDS + 10)
    if code is None:
        verdict.late.append("a rank with another secret still runs")
    elif code not in (CONFIG_EXIT, STOP_EXIT):
        verdict.wrong.append(f"a rank with another secret ends with {code}: {log_false.read_text()[-300:]}")
    elif "secret" not in log_false.read_text():
        verdict.unnamed.append(f"a rank with another secret is told: {log_false.read_text()[-300:]}")
    # What rank 0 then does is its own choice: wait for the true one, or end and name the false one.
    true_1, log_1 = hand_started(arena, 1, port, secret)
    arena.process, arena.log = true_0, log_0
    code = arena.check_ended(verdict, 120)
    if exit_of(true_1, 30) is None:
        verdict.late.append("rank 1 still runs")
    if code == 0:
        arena.check_finished(verdict)
    elif code is not None and "secret" not in log_0.read_text():
        verdict.unnamed.append(f"rank 0 on a rank with another secret: exit {code}: {log_0.read_text()[-300:]}")
    arena.end_all()
    arena.reset()
    return f"a rank with {'another' if others else 'no'} secret"


def attack(arena, random, verdict):
    kind = random.choice([garbage_at_every_port, stranger_at_the_port, other_secret])
    arena.reset()
    return kind(arena, random, verdict)
