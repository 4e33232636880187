"""The examples for schedulers do what they say: Slurm's scripts run under an `srun` that sets the variables of the real one,
and the PyTorchJob has the fields that the training operator reads, with a command that `trireme` takes.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from program import BINARY, make_tiny, run

ROOT = Path(__file__).resolve().parents[2]
# Two nodes of one task; of srun's own options, those of the examples.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE="1(x2)" SLURM_STEP_NODELIST="localhost,localhost" SLURM_LOCALID=0
pids=() code=0
for task in 0 1; do SLURM_PROCID=$task SLURM_NODEID=$task "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in "show hostnames") echo localhost; echo localhost ;; requeue*) echo "requeued $2" ;; esac
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A folder with fake programs of Slurm beside the real trireme, a tiny model and a set that two machines may share."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("trireme", f'#!/bin/bash\nexec {BINARY} "$@"\n')):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "text.txt").write_text(" ".join(f"Line {i} follows line {i - 1}." for i in range(2000)))
    make_tiny(folder / "tiny")
    run(folder, "tokenize", "--tokenizer", "tiny", "--input", "text.txt", "--output", "set")
    (folder / "run.secret").write_text("0123456789abcdef" * 4)
    (folder / "run.secret").chmod(0o600)
    return folder


def run_script(cluster, name, job, *more):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    environment |= {"PATH": f"{cluster}/bin:{os.environ['PATH']}", "MODEL": str(cluster / "tiny"), "DATA": str(cluster / "set"), "RANKS": "1",
                    "RUN": str(cluster / f"run-{job}"), "SECRET_FILE": str(cluster / "run.secret"), "SLURM_JOB_ID": job, "SLURM_NTASKS": "2",
                    "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "localhost,localhost"}
    toy = (ROOT / "examples/slurm" / name).read_text().replace("128k", "64").replace("--sp 8", "--sp 2")
    (cluster / name).write_text(toy)
    return subprocess.run(["bash", cluster / name, "--threads", "1", "--device", "cpu", *more], cwd=cluster, env=environment, capture_output=True,
                          text=True, timeout=600)


@pytest.mark.parametrize("name", ["train.sbatch", "launch.sbatch"])
def test_a_job_of_slurm_trains_and_goes_on(cluster, name):
    job = str(os.getpid() + len(name))
    first = run_script(cluster, name, job, "--max_steps", "2")
    assert first.returncode == 0, first.stdout + first.stderr
    second = run_script(cluster, name, job, "--max_steps", "4")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed at step 2" in second.stdout + second.stderr
    steps = [json.loads(line)["step"] for line in (cluster / f"run-{job}/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_a_job_that_is_asked_to_stop_is_put_into_the_queue_again(cluster):
    (cluster / "bin/srun").rename(cluster / "bin/srun-of-others")
    (cluster / "bin/srun").write_text("#!/bin/bash\nexit 75\n")
    (cluster / "bin/srun").chmod(0o755)
    try:
        stopped = run_script(cluster, "train.sbatch", "77")
    finally:
        (cluster / "bin/srun-of-others").rename(cluster / "bin/srun")
    assert (stopped.returncode, stopped.stdout) == (75, "requeued 77\n")


def flags_of(command):
    return set(re.findall(r"^  (--\w+)", run(".", command, "--help"), re.M))


def test_the_pytorchjob_has_the_operators_fields_and_a_command_of_trireme():
    job = yaml.safe_load((ROOT / "examples/kubernetes/pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"], set(job["spec"])) == ("kubeflow.org/v1", "PyTorchJob", {"runPolicy", "pytorchReplicaSpecs"})
    assert set(job["spec"]["runPolicy"]) <= {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy", "suspend"}
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        pod = replica["template"]["spec"]
        assert set(pod) <= {"terminationGracePeriodSeconds", "containers", "volumes"}
        (container,) = pod["containers"]
        assert set(container) <= {"name", "image", "command", "args", "env", "ports", "resources", "volumeMounts"}
        assert container["name"] == "pytorch"  # the operator looks for it
        assert {port["name"] for port in container["ports"]} == {"pytorchjob-port"}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    pods = sum(replica["replicas"] for replica in replicas.values())
    words = shlex.split(replicas["Master"]["template"]["spec"]["containers"][0]["args"][0])
    assert words[:3] == ["exec", "trireme", "launch"]
    launch, train = words[3 : words.index("--")], words[words.index("--") + 2 :]
    value = dict(zip(launch[::2], launch[1::2]))
    assert value["--nnodes"] == str(pods) and value["--node_rank"] == "$RANK"
    assert value["--master_addr"] == job["metadata"]["name"] + "-master-0"
    assert value["--nproc_per_node"] == str(replicas["Worker"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert set(launch[::2]) <= flags_of("launch")
    assert {word for word in train if word.startswith("--")} <= flags_of("train")
