"""Chats, tokenizers and requests that trireme.tokenize_chats refuses, each by name; and the command, `python -m trireme.chats`."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import transformers
import trireme
import trireme.chats
from chat_cases import CHATML, GOOD, TOKENIZERS, byte_level, chat_of, marked, plain, predicted_text, tokenized
from test_token_set import files_in, read_set

# In some tokenizers here the templates' marks are no special tokens, and in no other one the end of text (test_chat_format.py).
pytestmark = pytest.mark.filterwarnings("ignore:.*(which is no special token|would run on behind each answer)")

REFUSED_ROWS = {
    "row 1 has no message of the assistant": {"messages": chat_of("Hi")},
    "row 1 has no message of the assistant to": {"prompt": chat_of("Hi", "Hello"), "completion": chat_of("Bye")},
    "row 1 has the names 'text'; expected": {"text": "Hi"},
    "row 1 is a pair of 'chosen' and 'rejected', .*DPOTrainer": {"prompt": "Hi", "chosen": chat_of("Hi", "Hello"), "rejected": chat_of("Hi", "No")},
    "row 1 has no names": {},
    "row 1: got 'Hi' .str": "Hi",
    "row 1: messages is .*list": {"messages": []},
    "row 1: messages is .*dict": {"messages": {"role": "user"}},
    r"row 1: messages\[1\] is 'Hello'": {"messages": [{"role": "user", "content": "Hi"}, "Hello"]},
    r"row 1: prompt is a text; .*trireme tokenize": {"prompt": "Hi", "completion": "Hello"},
    r"row 1: messages\[0\] has the names 'content'; expected a role": {"messages": [{"content": "Hi"}]},
    r"row 1: messages\[1\], of role assistant, has no content": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant"}]},
    r"row 1: messages\[0\]: content is 5 .int": {"messages": [{"role": "user", "content": 5}]},
    "images and sounds": {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]},
    r"row 1: messages\[1\] has weight 0": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No", "weight": 0}]},
    r"row 1: conversations\[0\] is from 'robot'; expected one of human": {"conversations": [{"from": "robot", "value": "Hi"}]},
    r"row 1: conversations\[0\], of role user, has no content": {"conversations": [{"from": "human"}]},
    r"row 1: messages\[1\] has function_call, which .*give tool_calls": {"messages": [*chat_of("Hi"), {"role": "assistant", "content": "", "function_call": {"name": "fine"}}]},
    "row 1 has the name functions, which .*give tools": {**GOOD, "functions": [{"name": "fine"}]},
    "row 1 has 'system' beside a first message of role system": {"messages": [{"role": "system", "content": "Be brief."}, *GOOD["messages"]], "system": "Be kind."},
    "row 1: system is True .bool.; expected a text": {**GOOD, "system": True},
    "row 1 has 'messages', 'prompt', 'completion', which .*not alike": {**GOOD, "prompt": chat_of("Hi"), "completion": [{"role": "assistant", "content": "Bye"}]},
    "row 1 has 'messages', 'prompt', 'completion', which .*more than once": {"messages": chat_of("Hi", "Hello", "Bye", "No"), "prompt": chat_of("Hi", "Hello"), "completion": chat_of("Bye", "No")},
    "row 1 has 'messages', 'prompt', which": {**GOOD, "prompt": chat_of("Hi")},
    "row 1 has 'messages', 'conversations', which": {**GOOD, "conversations": [{"from": "human", "value": "Hi"}]},
    "row 1: tools is .*dict": {**GOOD, "tools": {"name": "fine"}},
    "row 1: tools is a text that is not JSON": {**GOOD, "tools": "fine"},
    "row 1: chat_template_kwargs is": {**GOOD, "chat_template_kwargs": [1]},
    r"row 1: the chat template cannot write its first 2 of 2 messages: TemplateError: alternate": {"messages": [*chat_of("Hi"), {"role": "assistant", "content": "raise"}]},
    "row 1: the chat template cannot write its first 0 of 1 messages.*begin it with a user's message": {"messages": [{"role": "assistant", "content": "Hello"}]},
    "row 1: .*UnicodeEncodeError": {"messages": chat_of("Hi", "a \ud800 b")},
    r"row 1: message 1 \(assistant\): the chat template writes nothing for it": {"messages": [*chat_of("Hi"), {"role": "assistant", "content": "nothing"}]},
}  # fmt: skip
STERN = (
    "{% if messages[0].role == 'user' %}{% endif %}{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('alternate') }}{% endif %}"
    + plain(CHATML)
    .removeprefix("{% for m in messages %}")
    .replace("m.content + '<|im_end|>'", "('' if m.content == 'nothing' else m.content + '<|im_end|>')")
)


@pytest.mark.parametrize("words", REFUSED_ROWS)
def test_rows_that_are_refused_are_named_and_nothing_is_left(tmp_path, words):
    with pytest.raises(trireme.DataError, match=words):
        tokenized(tmp_path, TOKENIZERS["byte-level"], STERN, [GOOD, REFUSED_ROWS[words]])
    assert files_in(tmp_path) == {}


SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
BRIEF = {"messages": [{"role": "system", "content": "Be brief."}, *GOOD["messages"]]}


def test_empty_names_of_other_formats_and_what_repeats_the_chat_change_nothing(tmp_path):
    answer = {**GOOD["messages"][1], "function_call": None}
    more = [{"messages": [GOOD["messages"][0], answer]}, {**GOOD, "functions": []}, {**GOOD, "functions": "[]"}, {**GOOD, "system": ""},
            {**GOOD, "conversations": []}, {**GOOD, "prompt": "Hi"}, {**GOOD, "prompt": "Hi", "completion": "Hello"}, {**SHAREGPT, "prompt": "Bye"},
            {**GOOD, **SHAREGPT}, {**GOOD, "prompt": chat_of("Hi"), "completion": GOOD["messages"][1:]}]  # fmt: skip
    got = tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [GOOD, *more])
    assert got == [got[0]] * (1 + len(more))
    more = [{**BRIEF, "system": "Be brief."}, {**BRIEF, **SHAREGPT, "system": "Be brief."}, {**GOOD, **SHAREGPT, "system": "Be brief."}]
    got = tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [BRIEF, *more])
    assert got == [got[0]] * (1 + len(more))


def tokenized_report(tmp_path, template, rows, **options):
    tokenizer = TOKENIZERS["byte-level"]
    tokenizer.chat_template = template
    return trireme.tokenize_chats(tokenizer, rows, tmp_path / "set", **options)


def test_rows_that_are_refused_are_left_out_where_it_is_asked_for(tmp_path):
    rows = [*REFUSED_ROWS.values(), GOOD, {"text": "Hi"}]
    report = tokenized_report(tmp_path, STERN, rows, on_bad_record="skip")
    assert (report.documents, report.bad_records) == (1, len(rows) - 1)
    assert len(report.first_bad_records) == 5 and report.first_bad_records[0].startswith("row 0 has no message of the assistant")
    assert len(read_set(tmp_path / "set")[0]) == 1
    with pytest.raises(trireme.ConfigError, match="on_bad_record: got 'ignore'"):
        tokenized_report(tmp_path, STERN, rows, on_bad_record="ignore", overwrite=True)
    with pytest.raises(trireme.DataError, match="nothing to write"):
        tokenized_report(tmp_path, STERN, rows[:3], on_bad_record="skip", overwrite=True)
    assert len(read_set(tmp_path / "set")[0]) == 1


def answer_with(**more):
    return {"messages": [*chat_of("Hi"), {"role": "assistant", "content": "No", **more}]}


@pytest.mark.parametrize("name, values", [("weight", [0, 0.5]), ("train", [False, 0, "false"]), ("loss", [0, False]), ("loss_mask", [0, [0]]), ("masked", [True, 1])])
def test_an_answer_that_another_trainer_leaves_out_is_refused_by_name(tmp_path, name, values):
    for value in values:
        with pytest.raises(trireme.DataError, match=rf"row 1: messages\[1\] has {name} {re.escape(repr(value))}; .*leave out each {name}"):
            tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [GOOD, answer_with(**{name: value})])
    sharegpt = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "No", name: values[0]}]}
    with pytest.raises(trireme.DataError, match=rf"row 0: conversations\[1\] has {name}"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [sharegpt])


def test_what_says_that_an_answer_is_trained_passes(tmp_path):
    said = [{"weight": 1, "train": True, "loss": 1, "loss_mask": 1, "masked": False}, {"weight": 1.0, "train": None, "loss": True, "masked": 0}, {}]
    rows = [answer_with(**more) for more in said]
    rows[0]["messages"][0] |= {"weight": 0, "train": False, "loss_mask": 0, "masked": True}  # a user's is not predicted anyway
    got = tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), rows)
    assert got == [got[2]] * 3 and predicted_text(TOKENIZERS["byte-level"], *got[0]) == ["No<|im_end|>"]


def test_marks_around_nothing_are_refused(tmp_path):
    never, empty = marked(CHATML).replace("m.role == 'assistant'", "m.role == 'model'"), plain(CHATML) + marked("({{ '' }})")
    for template in (never, empty):
        with pytest.raises(trireme.DataError, match="row 0: the chat template's {% generation %} marks hold nothing"):
            tokenized(tmp_path, TOKENIZERS["byte-level"], template, [GOOD])


@pytest.mark.parametrize("line, words", [
    (b'{"messages": [', "b.jsonl:2: not JSON"), (b"[", "b.jsonl:2: not JSON.*to_json"), (b"\xff\xfe{}", "b.jsonl:2: not JSON: 'utf-8'"),
    (b"[" * 100_000, "b.jsonl:2: not JSON"), (b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", "b.jsonl:2: .*nested too deeply"), (b"5", "b.jsonl:2: got 5 .int"),
])  # fmt: skip
def test_a_line_that_is_no_chat_is_named(tmp_path, line, words):
    (tmp_path / "b.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(trireme.DataError, match=words):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [tmp_path / "b.jsonl"])
    assert sorted(files_in(tmp_path)) == ["b.jsonl"]


def test_requests_that_are_refused_are_named(tmp_path):
    from datasets import Dataset, DatasetDict

    tokenizer = byte_level()
    for chats, words in [("none.jsonl", "none.jsonl is no file"), ([tmp_path], "is no file"), (GOOD, "got a dict with the names 'messages'"),
                         (DatasetDict(train=Dataset.from_list([GOOD])), "of several splits give one"), (5, "got 5 .int")]:  # fmt: skip
        with pytest.raises(trireme.ConfigError, match=words):
            tokenized(tmp_path, tokenizer, plain(CHATML), chats)
    with pytest.raises(trireme.ConfigError, match="answers: got 'first', expected one of"):
        tokenized(tmp_path, tokenizer, plain(CHATML), [GOOD], answers="first")
    with pytest.raises(trireme.ConfigError, match="no chat template; .*chat_template.jinja"):
        tokenized(tmp_path, tokenizer, None, [GOOD])
    with pytest.raises(trireme.ConfigError, match="row 0: .*multiple chat templates"):
        tokenized(tmp_path, tokenizer, {"tool_use": plain(CHATML)}, [GOOD])
    with pytest.raises(trireme.ConfigError, match="the tokenizer .* cannot be loaded"):
        trireme.tokenize_chats(tmp_path / "none", [GOOD], tmp_path / "set")
    with pytest.raises(trireme.ConfigError, match="ByT5Tokenizer does not tell which characters"):
        tokenized(tmp_path, transformers.ByT5Tokenizer(), plain(CHATML), [GOOD])
    assert files_in(tmp_path) == {}


def test_another_version_of_transformers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.22.1")  # not the one imported above, where a test imported it anew
    with pytest.raises(trireme.ConfigError, match="chats: got transformers 5.22.1, expected 5.23.x or 5.24.x, by which chat templates are tested"):
        tokenized(tmp_path, byte_level(), plain(CHATML), [GOOD])
    with pytest.raises(trireme.ConfigError, match="trireme.parallelize: got transformers 5.22.1, expected 5.23.x or 5.24.x, whose masks"):
        with trireme.parallelize(None):
            pass


# `python -m trireme.chats`, after a look at what the package alone imports, where there are no operators.
COMMAND = """
import runpy, sys, torch
of_torch = set(sys.modules)
import trireme
assert not {"transformers", "torch._dynamo"} & (sys.modules.keys() - of_torch)
no_operators, no_example = (lambda: trireme.SequenceGroup().spans(4)), trireme.tile_mlp(torch.nn.Linear(2, 2)).__enter__
for refused, words in ((no_operators, "its operators are not at /none"), (no_example, "give an example")):
    try:
        refused()
    except trireme.ConfigError as error:
        assert words in str(error)
    else:
        sys.exit(f"not refused: {words}")
assert "transformers" not in sys.modules
runpy.run_module("trireme.chats", run_name="__main__")
"""


def command(capsys, *words):
    code = trireme.chats.main([str(word) for word in words])
    return code, *capsys.readouterr()


@pytest.fixture
def folder(tmp_path):
    tokenizer = byte_level()
    tokenizer.chat_template = plain(CHATML)
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(json.dumps(GOOD) + "\n")
    return tmp_path


def files_in_set(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith("set.")]


def test_the_command_needs_no_operators_writes_the_set_and_says_how_to_go_on(folder):
    words = ["--tokenizer", folder / "model", "--input", folder / "chats.jsonl", "--output", folder / "set"]
    environment = {**os.environ, "TRIREME_OPERATORS": "/none"}
    done = subprocess.run([sys.executable, "-c", COMMAND, *map(str, words)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.startswith("trireme.chats: warning: the answers end in '<|im_end|>'") and len(done.stderr.splitlines()) == 1
    (document,) = read_set(folder / "set")[0]
    targets = sum(flag for _, flag in document)
    assert f"tokens              {len(document)}\n" in done.stdout and f"predicted           {targets} ({targets / len(document):.1%})" in done.stdout
    assert f"longest document    {len(document)} tokens" in done.stdout and "left out            0" in done.stdout
    assert f"--train_file {folder / 'set'} --packing best_fit --max_seq_length" in done.stdout


def test_the_command_skips_lines_that_are_no_chats_and_names_the_first(folder, capsys):
    lines = ["{", "{}", *["[]"] * 5, json.dumps(GOOD)]
    (folder / "mixed.jsonl").write_text("\n".join(lines))
    given = ["--tokenizer", folder / "model", "--output", folder / "set", "--input", folder / "mixed.jsonl"]
    assert command(capsys, *given)[0] == 65
    code, said, _ = command(capsys, *given, "--on_bad_record", "skip")
    assert code == 0 and "documents           1\n" in said
    assert f"skipped             7 lines\n    {folder}/mixed.jsonl:1: not JSON" in said and "\n    and 2 more\n" in said


def test_the_command_ends_with_the_codes_of_the_program(folder, capsys):
    given = ["--tokenizer", folder / "model", "--output", folder / "set", "--input"]
    (folder / "bad.jsonl").write_text("{}\n")
    (folder / "marks.jinja").write_text(marked(CHATML).replace("<|im_end|>", "</s>"))
    assert command(capsys, *given, folder / "bad.jsonl")[::2] == (
        65,
        f"trireme.chats: DataError: {folder}/bad.jsonl:1 has no names; {trireme.chat_formats.EXPECTED}\n",
    )
    assert command(capsys, *given, folder / "none.jsonl")[0] == 78
    assert command(capsys, *given, folder / "chats.jsonl", "--answers", "first")[0] == 78
    assert command(capsys, *given, folder / "chats.jsonl", "--nonsense")[0] == 78
    assert command(capsys, *given, folder / "chats.jsonl", "--chat_template_path", folder / "none")[0] == 78
    assert command(capsys, *given, folder / "chats.jsonl", folder / "chats.jsonl")[0] == 0
    assert len(read_set(folder / "set")[0]) == 2
    code, _, error = command(capsys, *given, folder / "chats.jsonl")
    assert code == 78 and "is there already" in error
    assert command(capsys, *given, folder / "chats.jsonl", "--overwrite", "--chat_template_path", folder / "marks.jinja", "--answers", "last")[0] == 0
    (document,) = read_set(folder / "set")[0]
    assert document[-2] == (TOKENIZERS["byte-level"].eos_token_id, True)


@pytest.mark.parametrize("name", ["set", "set.bin", "set.idx"])
def test_the_command_names_the_files_as_they_are(folder, capsys, name):
    code, said, _ = command(capsys, "--tokenizer", folder / "model", "--input", folder / "chats.jsonl", "--output", folder / name)
    assert code == 0 and said.startswith(f"wrote {folder}/set.bin and {folder}/set.idx\n") and f"--train_file {folder}/set --packing" in said
    assert sorted(files_in_set(folder)) == ["set.bin", "set.idx", "set.set.json"]


@pytest.mark.parametrize("words, predicted", [([], ["Hello<|im_end|>", "See you<|im_end|>"]), (["--answers", "last"], ["See you<|im_end|>"])])
def test_the_command_predicts_the_answers_that_are_asked_for(folder, capsys, words, predicted):
    (folder / "two.jsonl").write_text(json.dumps({"messages": chat_of("Hi", "Hello", "Bye", "See you")}))
    assert command(capsys, "--tokenizer", folder / "model", "--input", folder / "two.jsonl", "--output", folder / "set", *words)[0] == 0
    (document,) = read_set(folder / "set")[0]
    assert predicted_text(TOKENIZERS["byte-level"], *zip(*document)) == predicted


def test_a_command_that_is_terminated_leaves_nothing(folder, monkeypatch):
    def terminated(*_):
        assert [name.partition("-")[0] for name in files_in_set(folder)] == ["set.bin.partial"]
        os.kill(os.getpid(), signal.SIGTERM)

    def ignored(*_):
        """So that this test lives where the command does not see to it."""

    monkeypatch.setattr(sys.modules["trireme.tokenize_chats"], "targets_of", terminated)
    before = signal.signal(signal.SIGTERM, ignored)
    try:
        with pytest.raises(SystemExit) as end:
            trireme.chats.main(["--tokenizer", f"{folder}/model", "--input", f"{folder}/chats.jsonl", "--output", f"{folder}/set"])
        assert end.value.code == 143 and signal.getsignal(signal.SIGTERM) is ignored
    finally:
        signal.signal(signal.SIGTERM, before)
    assert files_in_set(folder) == []
