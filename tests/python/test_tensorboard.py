"""TensorBoard's own reader sees in a run's event files what metrics.jsonl holds, also of a run that was killed and resumed."""

import json
import signal
import subprocess
import time

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from program import BINARY, make_tiny, run


@pytest.fixture(scope="module")
def model_and_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorboard")
    make_tiny(folder / "model", "--set", "hidden_size=16", "intermediate_size=16")
    (folder / "text.txt").write_text("".join(f"Line {n} of this text has the square {n * n}.\n" for n in range(400)))
    return folder / "model", folder / "text.txt"


def train(model_and_text, out, *more):
    model, text = model_and_text
    return ["train", "--model_name_or_path", str(model), "--train_file", str(text), "--max_seq_length", "128",
            "--per_device_train_batch_size", "2", "--peak_tflops", "1", "--threads", "1", "--lr_scheduler_type", "constant",
            "--output_dir", str(out), *more]


def records_of(out):
    """By kind: {step: record}. The last line of a process that still writes may be cut off."""
    steps, evaluations = {}, {}
    for line in (out / "metrics.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            record = json.loads(line)
            (evaluations if "eval_loss" in record else steps)[record["step"]] = record
    return steps, evaluations


def scalars_of(folder):
    """{tag: {step: value}} as TensorBoard shows them."""
    reader = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    reader.Reload()
    series = {}
    for tag in reader.Tags()["scalars"]:
        points = reader.Scalars(tag)
        assert len({point.step for point in points}) == len(points), f"{tag} has two points at one step"
        series[tag] = {point.step: point.value for point in points}
    return series


def numbers(record):
    return {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}


def check_equal(series, records, prefix):
    """Each number of each record is a point, and there are no others with that prefix."""
    expected = {}
    for step, record in records.items():
        for name, value in numbers(record).items():
            expected.setdefault(prefix + name.removeprefix("eval_"), {})[step] = float(numpy.float32(value))
    assert {tag: points for tag, points in series.items() if points and tag.startswith(prefix)} == expected


def test_every_number_of_the_metrics_is_a_point_at_its_step(tmp_path, model_and_text):
    out = tmp_path / "run"
    run(".", *train(model_and_text, out, "--max_steps", "6", "--eval_steps", "4", "--validation_split_percentage", "20"))
    steps, evaluations = records_of(out)
    assert sorted(steps) == [1, 2, 3, 4, 5, 6] and sorted(evaluations) == [4, 6]
    series = scalars_of(out / "runs")
    check_equal(series, steps, "train/")
    check_equal(series, evaluations, "eval/")
    for category in steps[1]["memory"]:
        assert series["memory/" + category] == {s: float(numpy.float32(r["memory"][category])) for s, r in steps.items()}
    buckets = {f"eval_loss_by_position/{b['begin']}-{b['end'] - 1}": b["loss"] for b in evaluations[6]["by_position"]
               if b["target_tokens"] > 0}
    assert len(buckets) > 1
    assert {tag for tag in series if tag.startswith("eval_loss_by_position/")} == set(buckets)
    for tag, loss in buckets.items():
        assert series[tag][6] == float(numpy.float32(loss))
    assert {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss"} <= set(series)


def test_points_behind_the_checkpoint_of_a_killed_run_are_dropped_when_it_goes_on(tmp_path, model_and_text):
    out = tmp_path / "run"
    process = subprocess.Popen([BINARY, *train(model_and_text, out, "--max_steps", "1000000", "--save_steps", "50")],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + 600
        while not (out / "metrics.jsonl").exists() or max(records_of(out)[0], default=0) < 61:  # a step's point follows its line
            assert process.poll() is None and time.time() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    reached = max(scalars_of(out / "runs")["train/loss"])
    assert reached >= 60
    run(".", *train(model_and_text, out, "--max_steps", "55", "--save_steps", "50", "--resume_from_checkpoint", out / "checkpoints" / "step-50"))
    steps, _ = records_of(out)
    assert sorted(steps) == list(range(1, 56))
    assert len(list((out / "runs").iterdir())) == 2
    check_equal(scalars_of(out / "runs"), steps, "train/")


@pytest.mark.parametrize("arguments, expected", [
    (["--report_to", "wandb"], "--report_to is 'wandb': not built"),
    (["--report_to", "none", "--logging_dir", "logs"], "--logging_dir"),
])
def test_a_report_that_cannot_be_made_is_refused(tmp_path, model_and_text, arguments, expected):
    assert expected in run(".", *train(model_and_text, tmp_path / "run", "--max_steps", "1", *arguments), code=78)
    assert not (tmp_path / "run").exists()
