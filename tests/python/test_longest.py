"""The search for the longest sequence, on made-up outcomes, and its memory limit, on programs that take too much."""
import os
import sys

import longest_page
import machine
import pytest
from longest_search import Trial, next_length
from memory_limit import Watchdog


def search(holds, start, resolution=1 / 16, limit_seconds=1e9, seconds=lambda length: 1.0):
    """The longest length found where `holds` tokens fit, and the trials that it took."""
    trials = []
    while True:
        length, why = next_length(trials, start, resolution, limit_seconds)
        if length is None:
            return max((t.length for t in trials if t.outcome == "fits"), default=0), why, trials
        assert length not in [t.length for t in trials]
        late = seconds(length) > limit_seconds
        trials.append(Trial(length, "memory" if length > holds else "time" if late else "fits", min(seconds(length), limit_seconds)))


@pytest.mark.parametrize("holds", [300, 5000, 5119, 131072, 200001])
@pytest.mark.parametrize("start", [256, 4096, 1 << 20])
def test_the_longest_is_found_to_the_resolution_from_any_start(holds, start):
    found, why, trials = search(holds, start)
    assert found <= holds < found * (1 + 1 / 16) + 64
    assert why == "memory" and len(trials) < 25


def test_nothing_fits():
    assert search(100, 4096)[:2] == (0, "nothing")


def test_no_run_is_begun_that_would_last_too_long():
    found, why, trials = search(1 << 30, 1024, limit_seconds=100, seconds=lambda length: (length / 10000) ** 2)
    assert why == "time" and all(t.outcome == "fits" for t in trials)
    assert 90000 < found <= 100000


def test_a_run_that_fails_otherwise_ends_the_search():
    assert next_length([Trial(4096, "fits", 1), Trial(8192, "error", 1)], 4096, 1 / 16, 100) == (None, "error")


TAKES = "import time; held = bytearray({} << 20); held[::4096] = bytes(len(held[::4096])); time.sleep({})"


@pytest.mark.parametrize("through_a_child", [False, True])
def test_the_watchdog_ends_a_program_above_the_limit_with_its_children(through_a_child):
    limit = Watchdog(100 << 20)
    command = [sys.executable, "-c", TAKES.format(200, 60)]
    if through_a_child:
        command = ["/bin/sh", "-c", '"$@"; exit 3', "sh", *command]
    code, _, _, load = machine.run(command, dict(os.environ), 30, limit.start)
    limit.finish()
    assert limit.exceeded and code == -9 and load["wall_s"] < 20
    assert limit.peak_bytes > 100 << 20


def test_the_watchdog_lets_a_program_below_the_limit_end_and_knows_its_peak():
    limit = Watchdog(200 << 20)
    code, _, _, _ = machine.run([sys.executable, "-c", TAKES.format(100, 0.3)], dict(os.environ), 30, limit.start)
    limit.finish()
    assert code == 0 and not limit.exceeded
    assert 100 << 20 <= limit.peak_bytes < 150 << 20


HEADER = dict(resolution=1 / 16, trial_minutes=1)


def row(setting, length, outcome, allocator="own", **more):
    return dict(setting=setting, dtype="fp32", length=length, outcome=outcome, allocator=allocator, seconds=1.0, left_files=0,
                peak_bytes=3 << 30, step_s=[2.0, 1.0], tokens_per_s=length, losses=[5.0, 4.0], command=["trireme"], **more)


def test_the_page_compares_with_the_peers_best_allocator():
    rows = [row("hf", 4096, "fits", "glibc"), row("hf", 8192, "memory", "glibc"), row("hf", 5120, "fits", "tcmalloc"),
            row("everything", 40960, "fits"), row("everything", 43520, "memory")]
    lines = longest_page.table(HEADER, rows, "fp32")
    assert any("40,960" in line and "43,520: over the memory limit" in line and line.rstrip(" |").endswith("| 8.0") for line in lines)
    assert any("5,120" in line and "tcmalloc" in line for line in lines)


def test_the_page_says_what_is_not_known():
    assert any("would run over the time limit" in line for line in longest_page.table(
        HEADER, [dict(row("everything", 40960, "fits"), seconds=59)], "fp32"))
    assert any("not tried yet" in line for line in longest_page.table(HEADER, [row("everything", 40960, "fits")], "fp32"))
