"""Ranks for tests of the package `trireme`: processes with gloo between them, kept for all tests of a session."""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# As installed, or the source tree with the library of a build (./dev test python sets TRIREME_OPERATORS).
if "TRIREME_OPERATORS" in os.environ:
    sys.path.insert(0, str(HERE.parent.parent / "python"))
    # For processes of a fork server too, which begins with the environment alone.
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])

sys.path.append(str(HERE.parents[1] / "bench"))  # longest_*.py is tested here, tensor_bytes.py measures for tests

from rank_pool import MOST_RANKS, Ranks, import_deepspeed  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not in the gate (./dev test python gate)")


def _prepare_deepspeed():
    os.environ.setdefault("LOCAL_RANK", "0")
    import_deepspeed().init_distributed("gloo")


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
