"""Chats that several processes write by their template are the set, and have the errors, of one process."""

import dataclasses
import json
import pickle
import subprocess
import sys

import pytest
import trireme
import trireme.chats
import trireme.rendered_chats
from chat_cases import CHATML, GOOD, SAID, byte_level, chat_of, plain
from test_token_set import files_in
from trireme.chat_answers import ChatTemplate
from trireme.chat_rows import read_chats

pytestmark = pytest.mark.filterwarnings("ignore:.*would run on behind each answer")

ROWS = [{"messages": chat_of(f"Question {number}", *SAID[: 1 + 2 * (number % 2)])} for number in range(23)]
BAD = {"text": "Hi"}


def made(tmp_path, rows, num_proc, template=plain(CHATML), **options):
    """The report, and the files."""
    tokenizer = byte_level()
    tokenizer.chat_template = template
    report = trireme.tokenize_chats(tokenizer, rows, tmp_path / "set", num_proc=num_proc, overwrite=True, **options)
    return dataclasses.asdict(report), {name: data for name, data in files_in(tmp_path).items() if name.startswith("set.")}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(trireme.rendered_chats, "BATCH_ROWS", 2)


def test_the_set_is_that_of_one_process(tmp_path):
    rows = [*ROWS[:7], BAD, *ROWS[7:], BAD, {"messages": chat_of("Hi")}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = made(tmp_path, [tmp_path / "rows.jsonl"], 1, on_bad_record="skip")
    assert expected[0]["documents"] == 23 and expected[0]["bad_records"] == 3
    assert made(tmp_path, [tmp_path / "rows.jsonl"], 2, on_bad_record="skip") == expected


class ProcessHere:
    """Answers as another process does, when it is read."""

    def __init__(self, template):
        self.template, self.batches = template, []

    def write(self, what, batch):
        assert not self.batches, "it would wait to write to one that writes to it"
        self.batches.append(batch)

    def read(self):
        for row in self.batches.pop():
            yield trireme.rendered_chats._rendered(self.template, row, False)


def in_turn(count, rows):
    """What becomes of the rows, with `count` processes: the places of chats, and errors."""
    tokenizer = byte_level()
    tokenizer.chat_template = plain(CHATML)
    seen = []
    try:
        for one in trireme.rendered_chats._in_turn([ProcessHere(ChatTemplate(tokenizer)) for _ in range(count)], read_chats(rows)):
            seen.append(str(one) if isinstance(one, Exception) else one.origin)
    except OSError as error:
        seen.append(str(error))
    return seen


def failing_behind(rows):
    yield from rows
    raise OSError("the rows' disk is gone")


@pytest.mark.parametrize("count", [2, 3, 40])
def test_rows_come_back_in_their_order_and_what_fails_behind_them_last(count):
    places = [f"row {number}" for number in range(23)]
    assert in_turn(count, ROWS) == places
    assert in_turn(count, iter(ROWS[:4])) == places[:4] and in_turn(count, []) == []
    for good in (0, 1, 2, 7, 8):
        with_bad = [*ROWS[:good], BAD]
        got = in_turn(count, failing_behind(with_bad))
        assert got[:good] == places[:good] and got[good].startswith(f"row {good} has the names 'text'")
        assert got[good + 1 :] == ["the rows' disk is gone"]


def test_a_row_that_cannot_be_handed_over_is_named(tmp_path):
    with pytest.raises(trireme.ConfigError, match="num_proc: row 2 to row 3 cannot be handed to another process"):
        made(tmp_path, [*ROWS[:3], {**GOOD, "extra": lambda: None}], 2)
    assert files_in(tmp_path) == {}


def test_a_request_that_a_process_finds_at_fault_is_refused(tmp_path):
    with pytest.raises(trireme.ConfigError, match="row 0: .*multiple chat templates"):
        made(tmp_path, ROWS, 2, {"tool_use": plain(CHATML)})


def test_a_process_that_ends_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(trireme.rendered_chats, "SERVE", "raise SystemExit(3)")
    with pytest.raises(trireme.ConfigError, match=r"num_proc: one of 2 processes ended \(exit code 3\)"):
        made(tmp_path, ROWS, 2)
    assert files_in(tmp_path) == {}


def test_what_is_printed_as_python_starts_comes_not_between(tmp_path, monkeypatch):
    expected = made(tmp_path, ROWS, 1)
    monkeypatch.setattr(trireme.rendered_chats, "SERVE", "print('hello from site', flush=True); " + trireme.rendered_chats.SERVE)
    assert made(tmp_path, ROWS, 2) == expected


def test_a_process_ends_with_its_input():
    """So none outlives a command that is killed."""
    done = subprocess.run([sys.executable, "-c", trireme.rendered_chats.SERVE.format(answers=1)], input=pickle.dumps((None, False)), capture_output=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_a_number_of_processes_that_is_none_is_refused(tmp_path, count):
    with pytest.raises(trireme.ConfigError, match="num_proc: got "):
        made(tmp_path, ROWS, count)


def test_the_command_hands_on_its_number_of_processes(tmp_path, monkeypatch):
    byte_level().save_pretrained(tmp_path / "model")
    asked = []
    monkeypatch.setattr(trireme.chats, "tokenize_chats", lambda *_, num_proc, **__: asked.append(num_proc) or trireme.SetReport(1, 2, 1, 2, 0))
    words = ["--tokenizer", f"{tmp_path}/model", "--input", "chats.jsonl", "--output", f"{tmp_path}/set"]
    assert trireme.chats.main(words) == trireme.chats.main([*words, "--num_proc", "2"]) == 0
    assert asked == [1, 2]
    assert trireme.chats.main([*words, "--num_proc", "two"]) == 78
