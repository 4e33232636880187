"""Ranks that the real torchrun and the real mpirun start train as those of `trireme launch` do, to the last bit."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from program import BINARY, make_tiny


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """The words of a training of two steps, by the name of its folder."""
    folder = tmp_path_factory.mktemp("launchers")
    text = folder / "text.txt"
    text.write_text(" ".join(f"Line {i} follows line {i - 1}." for i in range(500)))
    make_tiny(folder / "tiny")
    return lambda name: (folder / name, ["train", "--model_name_or_path", str(folder / "tiny"), "--train_file", str(text), "--output_dir", str(folder / name),
                                         "--max_seq_length", "64", "--per_device_train_batch_size", "1", "--max_steps", "2", "--logging_steps", "1",
                                         "--ulysses", "2", "--threads", "1", "--device", "cpu"])


def run(words, **environment):
    done = subprocess.run(words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == 0, done.stdout


def result(folder):
    losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    return losses, [file.read_bytes() for file in sorted(folder.glob("checkpoints/step-2/rank-*.safetensors"))]


@pytest.fixture(scope="module")
def launched(train):
    folder, words = train("launched")
    run([BINARY, "launch", "--nproc_per_node", "2", "--", *words])
    return result(folder)


def test_torchrun(train, launched):
    folder, words = train("torchrun")
    run([sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
         "--master-port", free_port(), "--no-python", BINARY, *words])
    assert result(folder) == launched


def test_mpirun(train, launched):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is missing: ./dev setup launchers")
    folder, words = train("mpirun")
    run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", BINARY, *words], MASTER_PORT=free_port())
    assert result(folder) == launched
