"""The processes that tests run their ranks in."""

import os

import numpy
import pytest
import torch
import trireme
from rank_pool import Ranks


def run_draws(group):
    drawn = torch.tensor([numpy.random.random()])
    assert len({one.item() for one in trireme.SequenceGroup(group).all_gather(drawn)}) == 2


def test_ranks_draw_by_themselves(ranks):
    ranks.run(run_draws, 2)


def die(group):
    if group.rank() == 1:
        os._exit(3)


def nothing(_group):
    pass


def test_a_rank_that_died_is_named_and_the_next_test_has_ranks_again(tmp_path):
    pool = Ranks(tmp_path, 2)
    try:
        with pytest.raises(pytest.fail.Exception, match="rank 1 of 2: died, exit code 3"):
            pool.run(die, 2)
        pool.run(nothing, 2)
        pool._workers[0][0].kill()  # between two tests
        pool._workers[0][0].join()
        with pytest.raises(pytest.fail.Exception, match="rank 0 of 2: died, exit code -9"):
            pool.run(nothing, 2)
        pool.run(nothing, 2)
    finally:
        pool.stop()
