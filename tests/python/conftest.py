"""Ranks for tests of the package `trireme`: processes with gloo between them, kept for all tests of a session."""

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
    # For processes of a fork server too, which begins with the environment alone.
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])

MOST_RANKS = 4
ANSWER_SECONDS = 300  # a busy machine imports torch four times in a minute


def _work(rank, count, folder, paths, prepare, pipe):
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
        world_size=count,
        timeout=datetime.timedelta(seconds=200),
    )
    prepare()
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in range(1, count + 1)}
    while (task := pipe.recv()) is not None:
        module, function, ranks, arguments = task
        try:
            torch.manual_seed(0)
            getattr(importlib.import_module(module), function)(groups[ranks], *arguments)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
    os._exit(0)  # closing a group waits for peers, which may have failed


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not in the gate (./dev test python gate)")


def _nothing():
    pass


def _prepare_deepspeed():
    """DeepSpeed changes torch and transformers where it is imported, so it has ranks of its own."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed

    # Its reduction for inference would be compiled here, and leave 69 MB of /dev/shm to each rank.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo")


class Ranks:
    def __init__(self, folder, count=MOST_RANKS, prepare=_nothing):
        self._folder, self._count, self._prepare = folder, count, prepare
        self._starts, self._workers = 0, []

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
        for rank in range(self._count):
            ours, theirs = context.Pipe()
            arguments = (rank, self._count, str(folder), [str(HERE), *sys.path], self._prepare, theirs)
            worker = context.Process(target=_work, args=arguments, daemon=True)
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


@pytest.fixture(scope="session")
def deepspeed_ranks(tmp_path_factory):
    """By their number: a DeepSpeed engine is of all ranks of its processes."""
    pools = {count: Ranks(tmp_path_factory.mktemp("deepspeed_ranks"), count, _prepare_deepspeed) for count in (2, MOST_RANKS)}
    yield pools
    for pool in pools.values():
        pool.stop()
