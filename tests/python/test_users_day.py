"""A user's day, with the commands that a user types: the guide's ds_config.json with its contradiction; the same run started by
four launchers; a run that is asked to stop and goes on; a longer context with YaRN on other ranks and another ZeRO stage, whose
rank is killed. Each loss curve equals the uninterrupted one: in every digit at equal topology, to 1e-4 across.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from program import BINARY, make_tiny, run

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600
STEPS = 8
# ../docs/deepspeed-config.md: as guides show it, at a degree of 2.
GUIDE = {
    "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "sequence_parallelism": {"enabled": True, "degree": 2, "sequence_parallel_type": "ulysses"},
    "fp16": {"enabled": True}, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
}  # fmt: skip


def finish(command, folder, code=0, **options):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def launch(ranks, *flags):
    return [BINARY, "launch", *flags, "--nproc_per_node", ranks, "--"]


def train(output, *more, deepspeed="fixed.json"):
    """At 1K: the first leg of the day."""
    return ["train", "--deepspeed", deepspeed, "--model_name_or_path", "model", "--train_file", "set", "--max_seq_length", "1k",
            "--max_steps", STEPS, "--learning_rate", "1e-3", "--logging_steps", "1", "--threads", "1", "--output_dir", output, *more]  # fmt: skip


def steps_of(folder, output):
    file = folder / output / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {record["step"]: record for record in map(json.loads, lines) if "loss" in record}


def losses(folder, output):
    return [record["loss"] for _, record in sorted(steps_of(folder, output).items())]


def weights(folder, output):
    """The bytes of each rank's share in the end."""
    shares = sorted((folder / output / "checkpoints" / f"step-{STEPS}").glob("rank-*.safetensors"))
    assert shares
    return [share.read_bytes() for share in shares]


def wait_for_step(folder, output, step, process):
    end = time.monotonic() + LIMIT_SECONDS
    while step not in steps_of(folder, output):
        assert process.poll() is None and time.monotonic() < end, f"{output}: no step {step}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """A folder with the model, its tokens, the guide's configuration mended, and the run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("day")
    make_tiny(folder / "model", "--set", "max_position_embeddings=1024")
    text = "\n\n".join((ROOT / "docs" / name).read_text() for name in ("launching.md", "architecture.md", "options.md"))
    (folder / "text.txt").write_text(text)
    run(folder, "tokenize", "--tokenizer", "model", "--input", "text.txt", "--output", "set")
    (folder / "ds_config.json").write_text(json.dumps(GUIDE))
    run(folder, "config", "fix", "ds_config.json", "--ranks", 2, "--output", "fixed.json")
    finish([*launch(2), *train("undisturbed")], folder)
    assert len(losses(folder, "undisturbed")) == STEPS
    return folder


def test_the_guide_s_configuration_is_refused_with_its_arithmetic_and_mended(day):
    refused = finish([*launch(2), *train("refused", deepspeed="ds_config.json")], day, code=78)
    assert "train_batch_size 1 is not train_micro_batch_size_per_gpu 1 x gradient_accumulation_steps 4 x 1" in refused
    assert "trireme config fix ds_config.json --ranks 2" in refused
    assert json.loads((day / "fixed.json").read_text()) == {**GUIDE, "train_batch_size": 4}


def test_on_four_ranks(day):
    (day / "four.json").write_text(json.dumps({**GUIDE, "train_batch_size": 4, "sequence_parallelism": {"enabled": True, "degree": 4}}))
    finish([*launch(4), *train("four", deepspeed="four.json")], day)
    assert losses(day, "four") == pytest.approx(losses(day, "undisturbed"), rel=1e-4)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_under_torchrun(day):
    finish([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port(), "--no_python", BINARY,
            *train("torchrun")], day)  # fmt: skip
    assert losses(day, "torchrun") == losses(day, "undisturbed") and weights(day, "torchrun") == weights(day, "undisturbed")


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is missing: ./dev setup launchers")
def test_under_mpirun(day):
    meeting = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    finish(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", BINARY, *train("mpirun")], day, env=meeting)
    assert losses(day, "mpirun") == losses(day, "undisturbed") and weights(day, "mpirun") == weights(day, "undisturbed")


@pytest.fixture
def two_namespaces():
    """Two hosts, 10.78.0.1 and 10.78.0.2, that have nothing but a cable between them."""
    names = [f"trireme-{os.getpid()}-{i}" for i in (1, 2)]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True) if shutil.which("ip") else None
    if made is None or made.returncode != 0:
        pytest.skip("network namespaces need root and iproute2" + (": " + made.stderr if made else ""))
    try:
        for words in (f"ip netns add {names[1]}", f"ip -n {names[0]} link add net0 type veth peer name net0 netns {names[1]}"):
            subprocess.run(words.split(), check=True)
        for i, name in enumerate(names, 1):
            subprocess.run(f"ip -n {name} address add 10.78.0.{i}/24 dev net0".split(), check=True)
            for device in ("net0", "lo"):
                subprocess.run(f"ip -n {name} link set {device} up".split(), check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not to be had here: {error}")
    else:
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def test_over_two_namespaces(day, two_namespaces):
    (day / "run.secret").write_text("0123456789abcdef0123456789abcdef")
    os.chmod(day / "run.secret", 0o600)
    flags = ["--nnodes", "2", "--master_addr", "10.78.0.1", "--master_port", "29400", "--secret_file", "run.secret"]
    hosts = [subprocess.Popen([str(word) for word in ["ip", "netns", "exec", name, *launch(1, *flags, "--node_rank", i), *train("two")]], cwd=day,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i, name in enumerate(two_namespaces)]  # fmt: skip
    outputs = [host.communicate(timeout=LIMIT_SECONDS)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    assert losses(day, "two") == losses(day, "undisturbed")


def start(command, folder):
    return subprocess.Popen([str(word) for word in command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_asked_to_stop_by_a_signal_it_saves_and_goes_on(day):
    run = start([*launch(2), *train("stopped")], day)
    wait_for_step(day, "stopped", 3, run)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(LIMIT_SECONDS) == 75
    assert 3 <= len(losses(day, "stopped")) < STEPS
    finish([*launch(2), *train("stopped", "--resume_from_checkpoint", "true")], day)
    assert losses(day, "stopped") == losses(day, "undisturbed")


def longer(output, degree):
    """At 2K with YaRN: the second leg, which continues the first."""
    return ["train", "--continue_run", "undisturbed", "--max_seq_length", "2k", "--rope_scaling", "yarn:2", "--max_steps", STEPS,
            "--ulysses", degree, "--zero", 1, "--offload_params", "none", "--save_steps", 2, "--output_dir", output]  # fmt: skip


def rank_processes(folder, output):
    """Of a run that ranks under a launcher train, by process id: each names the output folder and has a launcher as parent."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if output.encode() in words and words[1] == b"train" and os.readlink(f"/proc/{process}/cwd") == str(folder):
                found.append(int(process))
        except (OSError, IndexError):  # it has just ended
            pass
    return found


def test_a_longer_context_on_other_ranks_survives_the_loss_of_one(day):
    finish([*launch(4), *longer("2k-of-four", 4)], day)
    finish([*launch(2), *longer("2k-of-two", 2)], day)
    run = start([*launch(4, "--max_restarts", 1), *longer("2k-killed", 4), "--save_in_background"], day)
    wait_for_step(day, "2k-killed", 5, run)
    os.kill(rank_processes(day, "2k-killed")[2], signal.SIGKILL)
    assert run.wait(LIMIT_SECONDS) == 0
    assert len(losses(day, "2k-of-four")) == STEPS
    assert losses(day, "2k-killed") == losses(day, "2k-of-four")
    assert losses(day, "2k-of-two") == pytest.approx(losses(day, "2k-of-four"), rel=1e-4)
    assert json.loads((day / "2k-killed/checkpoints" / f"step-{STEPS}" / "config.json").read_text())["max_position_embeddings"] == 2048
