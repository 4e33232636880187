"""Processes that share gloo groups and run what tests ask for. A server that has imported torch and its users once forks them."""

import contextlib
import gc
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import traceback

import numpy
import pytest

HERE = pathlib.Path(__file__).parent
# What a process that is forked has from its beginning. DeepSpeed changes torch and transformers where it is imported.
PRELOADED = ["pytest", "torch", "transformers.trainer", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "peft", "trireme.hf"]
MOST_RANKS = 4
ANSWER_SECONDS = 300  # on a busy machine


def forks():
    """Processes of a server that imports PRELOADED once, which takes each process by itself some 4 s of a core.

    They share what the server drew: the seed of hashes, and numpy's random state (draw_apart).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def draw_apart():
    """In a process that was forked: numpy's draws are its own, as those of Python are already."""
    numpy.random.seed()


def _work(rank, count, folder, paths, prepare, pipe):
    """Runs what the tests ask for, with a group of the first N ranks for each N."""
    gc.freeze()  # or each collection looks through all that was imported
    sys.path[:0] = [path for path in paths if path not in sys.path]
    import datetime

    import torch
    import torch.distributed as dist

    draw_apart()
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


def _nothing():
    pass


def import_deepspeed():
    """It changes torch and transformers where it is imported, so it has ranks of its own."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # Its reduction for inference would be compiled here, and leave 69 MB of /dev/shm to each rank.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    return deepspeed


class Ranks:
    def __init__(self, folder, count=MOST_RANKS, prepare=_nothing):
        self._folder, self._count, self._prepare = folder, count, prepare
        self._starts, self._workers = 0, []

    def run(self, function, ranks, *arguments):
        """function(group, *arguments) on each of `ranks` ranks; what one of them raises is the test's failure."""
        if not self._workers:
            self._start()
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._workers[:ranks])}
        for pipe in pipes:
            with contextlib.suppress(OSError):  # one that is dead is named below
                pipe.send((function.__module__, function.__name__, ranks, arguments))
        while pipes:
            ready = multiprocessing.connection.wait(pipes, ANSWER_SECONDS)
            failures = [(pipes[pipe], self._answer(pipes.pop(pipe))) for pipe in ready]
            failures = [f"rank {rank} of {ranks}: {answer}" for rank, answer in failures if answer is not None]
            if not ready:
                failures = [f"ranks {sorted(pipes.values())} of {ranks}: no answer within {ANSWER_SECONDS} s"]
            if failures:
                self.stop()  # the others may wait for one that failed
                pytest.fail("\n".join(failures), pytrace=False)

    def _answer(self, rank):
        worker, pipe = self._workers[rank]
        try:
            return pipe.recv()
        except (EOFError, ConnectionError):
            worker.join()
            return f"died, exit code {worker.exitcode}"

    def _start(self):
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir()
        context = forks()
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
