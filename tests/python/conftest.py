"""Ranks for tests of the package `trireme`: four processes with gloo between them, kept for all tests of a session."""

import importlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import traceback

import pytest

HERE = pathlib.Path(__file__).parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# As installed, or the source tree with the library of a build (./dev test python sets TRIREME_OPERATORS).
if "TRIREME_OPERATORS" in os.environ:
    sys.path.insert(0, str(HERE.parent.parent / "python"))

MOST_RANKS = 4
ANSWER_SECONDS = 300  # a busy machine imports torch four times in a minute


def _work(rank, folder, paths, pipe):
    """Runs what the tests ask for, with a group of the first N ranks for each N."""
    sys.path[:0] = [path for path in paths if path not in sys.path]
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=MOST_RANKS,
        timeout=datetime.timedelta(seconds=200),
    )
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in range(1, MOST_RANKS + 1)}
    while (task := pipe.recv()) is not None:
        module, function, ranks, arguments = task
        try:
            torch.manual_seed(0)
            getattr(importlib.import_module(module), function)(groups[ranks], *arguments)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
    os._exit(0)  # closing a group waits for peers, which may have failed


class Ranks:
    def __init__(self, folder):
        self._folder, self._starts, self._workers = folder, 0, []

    def run(self, function, ranks, *arguments):
        """function(group, *arguments) on each of `ranks` ranks; what one of them raises is the test's failure."""
        if not self._workers:
            self._start()
        mine = self._workers[:ranks]
        for _, pipe in mine:
            pipe.send((function.__module__, function.__name__, ranks, arguments))
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(mine)}
        while pipes:
            ready = multiprocessing.connection.wait(pipes, ANSWER_SECONDS)
            failures = [(pipes.pop(pipe), pipe.recv()) for pipe in ready]
            failures = [f"rank {rank} of {ranks}: {answer}" for rank, answer in failures if answer is not None]
            if not ready:
                failures = [f"ranks {sorted(pipes.values())} of {ranks}: no answer within {ANSWER_SECONDS} s"]
            if failures:
                self.stop()  # the others may wait for one that failed
                pytest.fail("\n".join(failures), pytrace=False)

    def _start(self):
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir()
        context = multiprocessing.get_context("spawn")
        for rank in range(MOST_RANKS):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(rank, str(folder), [str(HERE), *sys.path], theirs), daemon=True)
            worker.start()
            theirs.close()
            self._workers.append((worker, ours))

    def stop(self):
        for worker, pipe in self._workers:
            worker.kill()
            worker.join()
            pipe.close()
        self._workers = []


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    pool = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.stop()
