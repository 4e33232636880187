"""A disk that fills up, at sizes from less than one checkpoint to several: the run ends with the file's name, keeps what it
had, and goes on when there is room. A small file system in memory where this process may mount one; else, and in turn with
it, a limit on the size of files."""

import os
import subprocess

from training_run import DATA_EXIT, END_SECONDS, limited_file_size


def may_mount():
    return subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0 and os.geteuid() == 0


def mount(folder, size_bytes):
    folder.mkdir(parents=True, exist_ok=True)
    options = f"{'remount,' if os.path.ismount(folder) else ''}size={size_bytes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def attack(arena, random, verdict):
    checkpoint_bytes = 1_500_000
    fills = may_mount() and random.random() < 0.7
    if fills:
        size_bytes = int(checkpoint_bytes * random.uniform(0.05, 3.2))
        arena.reset()
        mount(arena.output_dir, size_bytes)
        what = f"disk of {size_bytes:,} bytes"
    else:
        size_bytes = int(random.uniform(1_000, checkpoint_bytes * 0.5))
        what = f"files of at most {size_bytes:,} bytes"
    try:
        arena.start(**({} if fills else {"preexec_fn": limited_file_size(size_bytes)}))
        code = arena.check_ended(verdict, 120)
        if code == 0:
            arena.check_finished(verdict)
            return what
        if code is not None and code != DATA_EXIT:
            verdict.wrong.append(f"{what}: exit {code}: {arena.tail()}")
        reasons = ("No space left", "File too large", "disk full", "is full")
        if not any(r in arena.text() for r in reasons) or str(arena.output_dir) not in arena.text():
            verdict.unnamed.append(f"{what}: {arena.tail()}")
        arena.check_kept(verdict)
        if fills:
            mount(arena.output_dir, 100_000_000)
        arena.start()
        code = arena.check_ended(verdict, 120 + END_SECONDS)
        if code != 0:
            verdict.lost.append(f"{what}: could not go on with room: exit {code}: {arena.tail()}")
        else:
            arena.check_finished(verdict)
    finally:
        if fills:
            subprocess.run(["umount", str(arena.output_dir)], check=True)
        arena.reset()
    return what
