"""The example scripts, as a user starts them: two ranks print what one prints."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

SCRIPTS = [
    "transformers_loop.py --steps 3 --tokens 301",
    pytest.param("sft_trainer.py --steps 3 --tokens 301", marks=pytest.mark.slow),
    pytest.param("fsdp2_loop.py", marks=pytest.mark.slow),
]
# A step's loss and gradient norm, as a loop prints them or a Trainer.
PRINTED = r"'?loss'?:? '?([\d.]+)'?,? '?(?:gradient |grad_)norm'?:? '?([\d.]+)"


def losses(script, ranks):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--nproc_per_node", str(ranks)]
    if ranks == 1:
        launch = []
        environment.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    done = subprocess.run([sys.executable, *launch, *f"examples/{script}".split()], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[float(x) for x in row] for row in re.findall(PRINTED, done.stdout)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_print_what_one_prints(script):
    alone, shared = losses(script, 1), losses(script, 2)
    assert len(alone) == len(shared) >= 3
    for (loss, norm), (shared_loss, shared_norm) in zip(alone, shared):
        assert abs(loss - shared_loss) <= 2e-5 and abs(norm - shared_norm) <= 1e-3 * norm
