"""trireme.train: the engine's metrics come as typed records, its refusals as ConfigError; a run that is left stops and has saved."""

import dataclasses
import gc
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest
import trireme
from trireme.metrics_file import MetricsFile, read_record

from program import make_tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600  # of what hangs; a slow machine needs a tenth of it


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Of a run of steps of some milliseconds."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "text.txt").write_text(" ".join(f"Line {i} follows line {i - 1}." for i in range(500)))
    return dict(model_name_or_path=make_tiny(folder / "tiny"), train_file=folder / "text.txt", max_seq_length=64, per_device_train_batch_size=1,
                report_to="none", threads=1, peak_tflops=1, device="cpu")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(options, tmp_path_factory):
    run = trireme.train(output_dir=tmp_path_factory.mktemp("undisturbed") / "run", max_steps=6, **options)
    return run, list(run)


def wait_for(found):
    end = time.monotonic() + LIMIT_SECONDS
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def losses(records):
    return [record.loss for record in records]


def documented(kind):
    """Names in the first column of the table of docs/metrics.md for a step, or an evaluation."""
    table = (ROOT / "docs/metrics.md").read_text().split(f"| field | of {kind} |")[1].split("\n\n")[0]
    return {name for row in re.findall(r"^\| (`.*?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}


def test_records_have_the_fields_of_the_page():
    for kind, words in ((trireme.Step, "a step"), (trireme.Evaluation, "an evaluation")):
        assert {field.name for field in dataclasses.fields(kind)} == documented(words) | {"other"}


def test_records_are_the_lines_that_the_run_wrote(undisturbed):
    run, records = undisturbed
    lines = [json.loads(line) for line in (run.output_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6] and run.exit_code == 0
    for record, line in zip(records, lines, strict=True):
        assert isinstance(record, trireme.Step) and record.other == {}
        assert {name: getattr(record, name) for name in line} == line
        assert all(value is None for name, value in dataclasses.asdict(record).items() if name not in line and name != "other")
    assert next(run, "no more") == "no more"


def test_options_reach_the_program_as_it_takes_them(options, tmp_path, undisturbed):
    """A list of stages, of paths, true, false and nothing; two ranks by the launcher; evaluations beside steps."""
    stages = [{"max_seq_length": 32, "steps": 1, "sp": 1}, {"max_seq_length": 64, "steps": 2, "sp": 2}]
    given = {**options, "train_file": [options["train_file"]], "max_seq_length": None, "update_in_backward": False, "gradient_checkpointing": True}
    run = trireme.train(output_dir=tmp_path / "run", nproc=2, launch={"max_restarts": 1}, context_stages=stages, validation_split_percentage=20,
                        eval_steps=2, save_steps=0, **given)  # fmt: skip
    records = list(run)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert [record.sequence_length for record in records if isinstance(record, trireme.Step)] == [32, 64, 64]
    evaluations = [record for record in records if isinstance(record, trireme.Evaluation)]
    assert [record.step for record in evaluations] == [2, 3] and all(record.other == {} and record.eval_loss > 0 for record in evaluations)
    assert (config["update_in_backward"], config["recompute"]) == (False, "full")


def test_two_ranks_tell_the_losses_of_one(options, tmp_path, undisturbed):
    records = list(trireme.train(output_dir=tmp_path / "run", nproc=2, sp=2, max_steps=6, **options))
    assert losses(records) == pytest.approx(losses(undisturbed[1]), rel=1e-5)
    assert len(records[0].memory_bytes_of_ranks) == 2


@pytest.mark.parametrize("nproc", [None, 2])
def test_a_refused_request_is_told_in_the_program_s_words(options, tmp_path, nproc):
    run = trireme.train(output_dir=tmp_path / "run", steps=3, nproc=nproc, **options)
    with pytest.raises(trireme.ConfigError) as refused:
        next(run)
    assert str(refused.value) == "trireme train has no flag --steps; did you mean --max_steps?"
    assert run.exit_code == 78 and list(run) == []


def test_a_failure_is_told_where_no_one_asks_for_records(options, tmp_path):
    with pytest.raises(trireme.ConfigError, match="--learning_rate is -1"):
        with trireme.train(output_dir=tmp_path / "run", learning_rate=-1, **options) as run:
            wait_for(lambda: run.exit_code is not None)


def test_a_stopped_run_saves_and_a_resumed_one_tells_what_is_new(options, tmp_path):
    undisturbed = list(trireme.train(output_dir=tmp_path / "undisturbed", max_steps=200, **options))
    first = trireme.train(output_dir=tmp_path / "run", max_steps=200, **options, save_steps=100)
    assert next(first).step == 1
    first.stop()
    told = [1, *(record.step for record in first)]
    assert first.exit_code == 75 and (tmp_path / f"run/checkpoints/step-{told[-1]}").is_dir()
    resumed = dict(output_dir=tmp_path / "run", max_steps=200, save_steps=100, **options)
    second = list(trireme.train(**resumed, resume_from_checkpoint=True))
    assert [record.step for record in second] == list(range(told[-1] + 1, 201))
    assert losses(second) == losses(undisturbed)[told[-1] :]
    assert second[0].resume_seconds is not None
    again = trireme.train(**resumed, resume_from_checkpoint=tmp_path / "run/checkpoints/step-100")
    assert [record.step for record in again] == list(range(101, 201))  # their old lines are dropped


@pytest.mark.parametrize("nproc", [None, 2])
def test_leaving_the_block_stops_the_run_which_saves(options, tmp_path, nproc):
    with trireme.train(output_dir=tmp_path / "run", max_steps=10**6, nproc=nproc, **options) as run:
        next(run)
    assert run.exit_code == 75 and list((tmp_path / "run/checkpoints").glob("step-*"))
    with warnings.catch_warnings(record=True) as told:
        for _ in trireme.train(output_dir=tmp_path / "other", max_steps=10**6, **options):
            break  # letting go of the iterator does the same
    assert list((tmp_path / "other/checkpoints").glob("step-*")) and not told, [str(warning.message) for warning in told]


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_an_interpreter_that_ends_takes_its_run_along(options, tmp_path, how):
    script = (
        "import os, signal, trireme, sys\n"
        f"run = trireme.train(output_dir='run', max_steps=10**6, **{ {name: str(value) for name, value in options.items()} })\n"
        "next(run)\n" + ("os.kill(os.getpid(), signal.SIGKILL)\n" if how == "is killed" else "")
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == (-signal.SIGKILL if how == "is killed" else 0), done.stderr
    wait_for(lambda: list((tmp_path / "run/checkpoints").glob("step-*")))
    steps = len((tmp_path / "run/metrics.jsonl").read_text().splitlines())
    time.sleep(0.3)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == steps


def program(folder, text):
    """A stand-in for the binary."""
    path = folder / "program"
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return path


def test_a_run_that_fails_is_told_with_its_last_lines(options, tmp_path):
    (tmp_path / "bad.jsonl").write_text("no document\n")
    with pytest.raises(trireme.RunFailed, match="ended with code 65") as failed:
        list(trireme.train(output_dir=tmp_path / "run", **{**options, "train_file": tmp_path / "bad.jsonl"}))
    assert failed.value.exit_code == 65 and "DataError" in failed.value.lines[-1] and "bad.jsonl" in str(failed.value)
    killed = trireme.train(output_dir=tmp_path, binary=program(tmp_path, "echo here we go; kill -9 $$"))
    with pytest.raises(trireme.RunFailed, match="(?s)killed by signal 9.*here we go"):
        list(killed)
    lines = []
    weak = program(tmp_path, "trap 'echo CommError: rank 1; exit 75' TERM; echo up; while :; do sleep 0.01; done")
    with pytest.raises(trireme.RunFailed, match="CommError: rank 1"):  # a stop that did not save is no success
        with trireme.train(output_dir=tmp_path, binary=weak, log=lines.append):
            wait_for(lambda: lines == ["up"])


@pytest.mark.parametrize("how", ["let go of", "left by an error"])
def test_a_run_that_could_not_save_is_a_warning_where_no_exception_can_tell_it(tmp_path, how):
    (tmp_path / "step").write_text(step_line(1))
    full = program(tmp_path, f"trap 'echo DataError: no room; exit 65' TERM; cp {tmp_path}/step {tmp_path}/metrics.jsonl; while :; do sleep 0.01; done")
    with pytest.warns(UserWarning, match="(?s)had failed: .*ended with code 65.*DataError: no room"):
        if how == "let go of":
            for _ in trireme.train(output_dir=tmp_path, binary=full):
                break
        else:
            with pytest.raises(KeyError), trireme.train(output_dir=tmp_path, binary=full) as run:
                next(run)
                raise KeyError("the caller's own")


def test_a_program_that_does_not_stop_is_killed_after_its_time(tmp_path):
    lines = []
    deaf = program(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.01; done")
    with pytest.raises(trireme.RunFailed, match="killed by signal 9"):
        with trireme.train(output_dir=tmp_path, binary=deaf, stop_seconds=0.5, log=lines.append):
            wait_for(lambda: lines == ["up"])


def test_warnings_of_the_program_are_warnings_and_lines_go_where_they_are_asked(tmp_path):
    warner = program(tmp_path, "echo hello; echo '[rank 0] trireme: warning: careful' >&2")
    with pytest.warns(UserWarning, match="careful"):
        assert list(trireme.train(output_dir=tmp_path, binary=warner)) == []
    lines = []
    list(trireme.train(output_dir=tmp_path, binary=warner, log=lines.append))
    assert lines == ["hello", "[rank 0] trireme: warning: careful"]


def test_a_line_that_comes_while_lines_are_taken_is_not_lost(tmp_path):
    run = trireme.train(output_dir=tmp_path, binary=program(tmp_path, ""))
    add = run._process._untold.append  # as the reader's thread has it in its hands
    run._process.take_lines_of("")
    add("late")
    assert run._process.take_lines_of("late") == ["late"] and list(run) == []


def test_where_the_program_is_looked_for(tmp_path, monkeypatch):
    one, other = program(tmp_path, ""), tmp_path / "trireme"
    other.write_bytes(one.read_bytes())
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("TRIREME_BINARY")
    assert trireme.engine_binary() == str(other)
    monkeypatch.setenv("TRIREME_BINARY", str(one))
    assert trireme.engine_binary() == str(one) and trireme.engine_binary(other) == str(other)
    monkeypatch.setenv("TRIREME_BINARY", str(tmp_path / "absent"))
    with pytest.raises(trireme.ConfigError, match="TRIREME_BINARY is .*absent"):
        trireme.engine_binary()
    monkeypatch.delenv("TRIREME_BINARY")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(trireme.ConfigError, match="TRIREME_BINARY is not set.*`./dev build cpu trireme"):
        trireme.engine_binary()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(trireme.ConfigError, match="call it in one process"):
        trireme.train(output_dir=tmp_path)


def step_line(step, seconds=0.5):
    values = {field.name: 0 for field in dataclasses.fields(trireme.Step) if field.default is field.default_factory is dataclasses.MISSING}
    return json.dumps({**values, "step": step, "seconds": seconds}) + "\n"


def files_left_open(recwarn, folder):
    """In words; other files of this process are no one's here."""
    gc.collect()
    return [text for text in (str(warning.message) for warning in recwarn) if str(folder) in text]


def test_lines_are_told_once_whole_and_across_files_that_take_each_other_s_place(tmp_path, recwarn):
    path = tmp_path / "metrics.jsonl"
    path.write_text(step_line(1))
    metrics = MetricsFile(path)

    def told():
        return [(record.step, record.seconds) for record in iter(metrics.read, None)]

    assert told() == []
    with open(path, "a") as file:
        file.write(step_line(2) + step_line(3)[:20])
        file.flush()
        assert told() == [(2, 0.5)]
        file.write(step_line(3)[20:])
    new = tmp_path / "new"
    new.write_text(step_line(1) + step_line(2) + step_line(3, 0.7))  # before the old one's end was read
    os.replace(new, path)
    assert told() == [(3, 0.5), (3, 0.7)]
    path.unlink()
    assert told() == []
    path.write_text(step_line(1, 0.9))
    assert told() == [(1, 0.9)]
    metrics.close()
    assert not files_left_open(recwarn, tmp_path)


@pytest.mark.parametrize("how", ["read to its end", "closed", "let go of", "left by an error"])
def test_a_run_that_ended_leaves_no_file_open(tmp_path, recwarn, how):
    (tmp_path / "metrics.jsonl").write_text(step_line(1))
    run = trireme.train(output_dir=tmp_path, binary=program(tmp_path, ""))
    if how == "read to its end":
        assert list(run) == []
    elif how == "closed":
        run.close()
    elif how == "left by an error":
        with pytest.raises(KeyError), run:
            raise KeyError("the caller's own")
        assert list(run) == []
    del run
    assert not files_left_open(recwarn, tmp_path)


def test_a_record_of_another_version_keeps_what_is_new_and_is_refused_where_a_field_is_gone():
    line = json.loads(step_line(1))
    assert read_record(json.dumps({**line, "colour": 1})).other == {"colour": 1}
    del line["loss"]
    with pytest.raises(trireme.ConfigError, match="one version of Trireme"):
        read_record(json.dumps(line))
