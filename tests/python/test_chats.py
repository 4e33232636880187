"""trireme.tokenize_chats: the model is trained on what the assistant has to produce, and on nothing else.

Judged by what was said and by bytes of tokens, by transformers' own masks, and by templates that TRL marked by hand.
"""

import hashlib
import json
import os
import random
import resource
import subprocess
import sys

import pytest
import tokenizers
import transformers
import trireme
from chat_cases import CHATML, FORGETS, GOOD, LLAMA3, MISTRAL, SAID, TEMPLATES, TOKENIZERS, TRL_TEMPLATES, byte_level, chat_of, marked, of_transformers, plain, predicted_text, targets_by_bytes, tokenized
from program import BINARY, run
from test_token_set import files_in

# In some tokenizers here the templates' marks are no special tokens, and in no other one the end of text (test_chat_format.py).
pytestmark = pytest.mark.filterwarnings("ignore:.*(which is no special token|would run on behind each answer)")


@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name != "metaspace"])
def test_a_token_is_a_target_where_it_has_a_byte_of_an_answer(tmp_path, name, style):
    tokenizer, (template, header, begin, end) = TOKENIZERS[name], TEMPLATES[style]
    draw = random.Random(3)
    chats = [chat_of(*(draw.choice(SAID) + draw.choice(("", " ", "  ", "\n")) for _ in range(draw.choice((2, 4, 6))))) for _ in range(12)]
    strip = str.strip if "trim" in template else str
    got = tokenized(tmp_path, tokenizer, plain(template), [{"messages": chat} for chat in chats])
    assert len(got) == len(chats)
    for chat, (ids, is_target) in zip(chats, got):
        answers = [begin + strip(message["content"]) + end for message in chat[1::2]]
        assert is_target == targets_by_bytes(tokenizer, ids, header, answers), chat


@pytest.mark.parametrize("style", TEMPLATES)
def test_what_is_predicted_is_what_the_assistant_says(tmp_path, style):
    tokenizer, (template, _, _, end) = TOKENIZERS["metaspace"], TEMPLATES[style]
    (got,) = tokenized(tmp_path, tokenizer, plain(template), [{"messages": chat_of("Hi there.", "Hello you.", "Bye", "See you.")}])
    assert [text.strip() for text in predicted_text(tokenizer, *got)] == ["Hello you." + end, "See you." + end]


@pytest.mark.parametrize("style", [style for style in TEMPLATES if style != "mistral"])  # transformers loses a mark that begins with a space
@pytest.mark.parametrize("name", [name for name in TOKENIZERS if "pieces" not in name])
def test_the_targets_are_those_of_transformers_for_a_template_with_marks(tmp_path, name, style):
    tokenizer, template = TOKENIZERS[name], TEMPLATES[style][0]
    draw = random.Random(4)
    said = [text.strip() for text in SAID]
    chats = [chat_of(*(draw.choice(said) for _ in range(draw.choice((2, 4, 6))))) for _ in range(12)]
    rows = [{"messages": chat} for chat in chats]
    found, read = (tokenized(tmp_path, tokenizer, kind(template), rows) for kind in (plain, marked))
    for place, chat in enumerate(chats):
        theirs = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True, chat_template=marked(template))
        expected = theirs["input_ids"], [bool(flag) for flag in theirs["assistant_masks"]]
        assert found[place] == expected and read[place] == expected


@pytest.mark.parametrize("model", ["cohere", "cohere2", "llama3", "gemma", "gemma3", "lfm2", "qwen3_instruct_2507", "qwen3_vl"])
def test_the_targets_are_those_that_trl_marked_in_the_models_template(tmp_path, model):
    tokenizer, chat = TOKENIZERS["byte-level"], chat_of("Hi there.", "Hello you.", "Bye", "See you.")
    (got,) = tokenized(tmp_path, tokenizer, (TRL_TEMPLATES / f"{model}.jinja").read_text(), [{"messages": chat}])
    trl = (TRL_TEMPLATES / f"{model}_training.jinja").read_text()
    theirs = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True, chat_template=trl)
    assert got[0] == theirs["input_ids"]
    # TRL's marks hold the line feed behind an answer; a model that is used has stopped before.
    line_feed = tokenizer.convert_tokens_to_ids("\u010a")
    expected = [flag == 1 and (one, before) != (line_feed, 1) for one, flag, before in
                zip(theirs["input_ids"], theirs["assistant_masks"], [0, *theirs["assistant_masks"]])]  # fmt: skip
    assert got[1] == expected and sum(expected) > 8


def test_marks_are_taken_as_they_are(tmp_path):
    """Where transformers' mask goes wrong: at a mark that begins or ends in a space, whose offsets a byte-level tokenizer trims."""
    tokenizer = TOKENIZERS["byte-level"]
    template = marked(
        "{% for m in messages %}{% if m.role == 'assistant' %}({{ '  ' + m.content + '</s>  ' }}){% else %}{{ '<s>' + m.content }}{% endif %}{% endfor %}"
    )
    (got,) = tokenized(tmp_path, tokenizer, template, [{"messages": chat_of("Hi", "Yes", "Bye", "No")}])
    assert predicted_text(tokenizer, *got) == ["  Yes</s>  ", "  No</s>  "]


def test_a_prompts_marks_are_as_many_as_the_template_makes(tmp_path):
    tokenizer, chat = TOKENIZERS["byte-level"], chat_of("Hi", "Hello", "Bye", "See you", "What?", "No")
    twice = marked(CHATML.replace("({{ m.content + '<|im_end|>' }})", "({{ m.content }}){{ ' ' }}({{ '<|im_end|>' }})"))
    (got,) = tokenized(tmp_path, tokenizer, twice, [{"prompt": chat[:3], "completion": chat[3:]}])
    assert predicted_text(tokenizer, *got) == ["See you", "<|im_end|>", "No", "<|im_end|>"]


def test_a_prompts_marks_that_are_others_in_the_whole_chat_are_refused(tmp_path):
    """The answers among the last four messages alone are marked: as many as the prompt's, were they counted."""
    tokenizer, chat = TOKENIZERS["byte-level"], chat_of("Hi", "Hello", "Bye", "See you", "What?", "No")
    template = marked(CHATML).replace("m.role == 'assistant'", "m.role == 'assistant' and loop.revindex <= 4", 1)
    with pytest.raises(trireme.DataError, match=r"row 1: .*generation %} marks of the chat before message 3 are not the first ones"):
        tokenized(tmp_path, tokenizer, template, [GOOD, {"prompt": chat[:3], "completion": chat[3:]}])
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("style", TEMPLATES)
def test_the_ids_are_those_of_the_chat_in_use_with_its_beginning_once(tmp_path, name, style):
    tokenizer, chat = TOKENIZERS[name], chat_of(*SAID)
    (got,) = tokenized(tmp_path, tokenizer, plain(TEMPLATES[style][0]), [{"messages": chat}])
    assert got[0] == tokenizer.apply_chat_template(chat)["input_ids"]
    if "pieces" not in name:
        assert got[0].count(tokenizer.bos_token_id) == (style != "chatml")
        assert tokenizer("x").input_ids[0] == tokenizer.bos_token_id  # it would have put its own


@pytest.mark.parametrize("kind", [plain, marked])
@pytest.mark.parametrize("style", TEMPLATES)
def test_only_the_last_answer_is_predicted_if_it_is_asked_for(tmp_path, style, kind):
    tokenizer, (template, _, _, end) = TOKENIZERS["byte-level"], TEMPLATES[style]
    (got,) = tokenized(tmp_path, tokenizer, kind(template), [{"messages": chat_of("Hi", "Hello", "Bye", "See you", "What?")}], answers="last")
    assert [text.strip() for text in predicted_text(tokenizer, *got)] == ["See you" + end]
    assert "What?" not in tokenizer.decode(got[0]) and "Hello" in tokenizer.decode(got[0])


@pytest.mark.parametrize("kind", [plain, marked])
@pytest.mark.parametrize("style", TEMPLATES)
def test_of_a_prompt_nothing_is_predicted(tmp_path, style, kind):
    tokenizer, (template, _, _, end) = TOKENIZERS["byte-level"], TEMPLATES[style]
    chat = chat_of("Hi", "Hello", "Bye", "See you", "What?", "No")
    (got,) = tokenized(tmp_path, tokenizer, kind(template), [{"prompt": chat[:3], "completion": chat[3:]}])
    assert [text.strip() for text in predicted_text(tokenizer, *got)] == ["See you" + end, "No" + end]


def test_a_completion_is_what_it_is_to_trl(tmp_path):
    """SFTTrainer's rule: what the chat has more than the prompt with the generation prompt, in tokens."""
    tokenizer, chat = TOKENIZERS["byte-level"], chat_of("Hi there.", "Hello!", "Bye", "See  you.")
    (got,) = tokenized(tmp_path, tokenizer, plain(MISTRAL), [{"prompt": chat[:3], "completion": chat[3:]}])
    prompt = tokenizer.apply_chat_template(chat[:3], add_generation_prompt=True)["input_ids"]
    assert got[0][: len(prompt)] == prompt and got[1] == [place >= len(prompt) for place in range(len(got[0]))]


def test_a_template_that_drops_reasoning_is_refused_by_name_and_its_last_answer_taken(tmp_path):
    tokenizer = TOKENIZERS["byte-level"]
    chat = chat_of("Hi", "<think>hm</think>Hello", "Bye", "<think>so</think>See you")
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat[:2]}) + "\n\n" + json.dumps({"messages": chat}) + "\n")
    before = files_in(tmp_path)
    words = r"chats.jsonl:3: message 1 \(assistant\): the chat template writes the chat to its end otherwise .*think.*answers=\"last\""
    with pytest.raises(trireme.DataError, match=words):
        tokenized(tmp_path, tokenizer, FORGETS, tmp_path / "chats.jsonl")
    assert files_in(tmp_path) == before
    got = tokenized(tmp_path, tokenizer, FORGETS, tmp_path / "chats.jsonl", answers="last")
    assert [predicted_text(tokenizer, *one) for one in got] == [["<think>hm</think>Hello<|im_end|>"], ["<think>so</think>See you<|im_end|>"]]
    assert "hm" not in tokenizer.decode(got[1][0])


@pytest.mark.parametrize("asked, says", [({}, "<think>\n\n</think>\n\n"), ({"enable_thinking": False}, "")])
def test_what_the_generation_prompt_writes_is_not_predicted(tmp_path, asked, says):
    """Qwen3's own template. Asked not to think, it has the empty block from its prompt; else it is to write it."""
    tokenizer = TOKENIZERS["byte-level"]
    row = {"messages": chat_of("Hi", "Hello"), "chat_template_kwargs": asked}
    (got,) = tokenized(tmp_path, tokenizer, (TRL_TEMPLATES / "qwen3.jinja").read_text(), [row])
    assert predicted_text(tokenizer, *got) == [says + "Hello<|im_end|>"]
    assert "<think>\n\n</think>\n\nHello" in tokenizer.decode(got[0])


def test_a_template_whose_generation_prompt_is_not_how_answers_begin_is_refused(tmp_path):
    template = plain(CHATML).replace("assistant\n' }}{% endif %}", "assistant\n<think>' }}{% endif %}")
    with pytest.raises(trireme.DataError, match=r"row 0: message 1 .*with the generation prompt, otherwise.*<think>.*generation %\} marks"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], template, [{"messages": chat_of("Hi", "Hello")}], answers="last")


def test_rows_of_all_kinds_are_one_set(tmp_path):
    from datasets import Dataset

    tokenizer = TOKENIZERS["byte-level"]
    chats = [chat_of("Hi", "Hello"), chat_of("Bye", "See you", "What?", "No")]
    rows = [{"messages": [{"role": "system", "content": "Be brief."}, *chat]} for chat in chats]
    names = {"user": "human", "assistant": "gpt"}
    sharegpt = [{"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in chat], "system": "Be brief."} for chat in chats]
    beside = [{"messages": chat, "system": "Be brief."} for chat in chats]
    prompts = [{"prompt": chat[:1], "completion": chat[1:], "system": "Be brief."} for chat in chats]
    (tmp_path / "a.jsonl").write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows[:1]))
    (tmp_path / "b.jsonl").write_text("\n" + "".join(json.dumps(row) for row in rows[1:]))
    paths = [tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")]
    expected = tokenized(tmp_path, tokenizer, plain(CHATML), rows)
    assert len(expected) == 2 and tokenizer.decode(expected[0][0]).count("Be brief.") == 1
    for chats in (iter(rows), Dataset.from_list(rows), Dataset.from_list(sharegpt), sharegpt, beside, prompts, paths, tuple(paths)):
        assert tokenized(tmp_path, tokenizer, plain(CHATML), chats) == expected


def test_tools_and_calls_reach_the_template(tmp_path):
    tokenizer = TOKENIZERS["byte-level"]
    tool = {"type": "function", "function": {"name": "fine", "parameters": {}}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "fine", "arguments": {"are": "you"}}}]}
    chat = [chat_of("Hi")[0], call, {"role": "tool", "content": "thanks"}, {"role": "assistant", "content": "Hello"}]
    template = (TRL_TEMPLATES / "qwen3_instruct_2507.jinja").read_text()
    for tools in ([tool], json.dumps([tool])):
        (got,) = tokenized(tmp_path, tokenizer, template, [{"messages": chat, "tools": tools}])
        called = '<tool_call>\n{"name": "fine", "arguments": {"are": "you"}}\n</tool_call><|im_end|>'
        assert predicted_text(tokenizer, *got) == [called, "Hello<|im_end|>"]
        assert '"function": {"name": "fine", "parameters"' in tokenizer.decode(got[0])
    for tools in ([], None, ""):
        (got,) = tokenized(tmp_path, tokenizer, "{{ tools is none }}" + plain(CHATML), [{**GOOD, "tools": tools}])
        assert tokenizer.decode(got[0]).startswith("True<|im_start|>")


def called(arguments):
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "fine", "arguments": arguments}}]}


def test_arguments_in_a_text_of_json_are_written_as_the_template_writes_them(tmp_path):
    """As OpenAI has them."""
    template = (TRL_TEMPLATES / "qwen3_instruct_2507.jinja").read_text()
    rows = [{"messages": [*chat_of("Hi"), called(arguments)]} for arguments in ({"are": "you"}, '{"are": "you"}')]
    first, second = tokenized(tmp_path, TOKENIZERS["byte-level"], template, rows)
    assert first == second
    wants_text = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}fine{{ c.function.arguments + '' }}{% endfor %}|\n{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
    (got,) = tokenized(tmp_path, TOKENIZERS["byte-level"], wants_text, rows[1:])
    assert 'fine{"are": "you"}|' in predicted_text(TOKENIZERS["byte-level"], *got)[0]


LOST = [
    ([*chat_of("Hi"), {"role": "tool", "content": "31 degrees"}, {"role": "assistant", "content": "31"}], r"message 1 \(tool\): its content, '31 degrees'"),
    ([{"role": "developer", "content": "In French"}, *chat_of("Hi", "Oui")], r"message 0 \(developer\)"),
    ([*chat_of("Hi", "Hello", "Bye"), {"role": "bot", "content": "So long"}], r"message 3 \(bot\)"),
    ([*chat_of("Hi"), {"role": "assistant", "content": "Hello", "reasoning_content": "greet back"}], r"message 1 \(assistant\): its reasoning_content"),
    ([*chat_of("Hi"), {"role": "assistant", "content": "<think>greet back</think>Hello"}], r"message 1 \(assistant\): its reasoning, 'greet back'"),
    ([*chat_of("Hi"), called({})], r"message 1 \(assistant\): its tool call, 'fine'"),
]


@pytest.mark.parametrize("messages, words", LOST, ids=[words.split("message ")[1][:14] for _, words in LOST])
def test_what_a_template_does_not_write_is_refused(tmp_path, messages, words):
    knows_two = """{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ (m.content or '').split('</think>')[-1] }}</s>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
    with pytest.raises(trireme.DataError, match="row 0: " + words):
        tokenized(tmp_path, TOKENIZERS["byte-level"], knows_two, [{"messages": messages}])


@pytest.mark.parametrize("template, words", [("llama3_1", "its content, 'Weather in Rome'"), ("lfm2", "its tool call, 'fine'"), ("lfm2_training", "its tool call, 'fine'")])
def test_what_a_template_drops_of_an_answer_is_refused_though_its_words_stand_elsewhere(tmp_path, template, words):
    tool = {"type": "function", "function": {"name": "fine", "description": "Weather", "parameters": {}}}
    row = {"messages": [*chat_of("Weather in Rome"), {**called({"city": "Rome"}), "content": "Weather in Rome"}], "tools": [tool]}
    with pytest.raises(trireme.DataError, match=r"row 0: message 1 \(assistant\): " + words):
        tokenized(tmp_path, TOKENIZERS["byte-level"], (TRL_TEMPLATES / f"{template}.jinja").read_text(), [row])


def test_an_answer_may_begin_with_words_of_the_generation_prompt(tmp_path):
    template = plain(CHATML).replace("assistant\n' }}{% endif %}", "assistant\nWell,' }}{% endif %}")
    (got,) = tokenized(tmp_path, TOKENIZERS["byte-level"], template, [{"messages": chat_of("Hi", "Well, hello")}])
    assert predicted_text(TOKENIZERS["byte-level"], *got) == [" hello<|im_end|>"]


@pytest.mark.parametrize("template, of_each", [("qwen2_5", 2), ("llama3", 2), ("qwen2_5_training", 0), ("llama3_training", 0)])
def test_to_find_an_answers_words_costs_no_rendering(tmp_path, monkeypatch, template, of_each):
    """Without marks an answer is found by the chat before it and up to it; the last chat is the whole."""
    from transformers.utils import chat_template_utils

    rendered, render = [], chat_template_utils.render_jinja_template

    def counting(chats, **options):
        rendered.extend(chats)
        return render(chats, **options)

    monkeypatch.setattr(chat_template_utils, "render_jinja_template", counting)
    chat = chat_of("Hi there.", "Hello you.", "Bye", "Hello you.", "Hi there.", "Hello you.")
    (got,) = tokenized(tmp_path, TOKENIZERS["byte-level"], (TRL_TEMPLATES / f"{template}.jinja").read_text(), [{"messages": chat}])
    assert len(rendered) == max(1, of_each * 3) and sum(got[1]) > 8


@pytest.mark.parametrize("words", ["Bye", ""])
def test_marks_that_are_as_many_as_the_answers_need_not_be_one_for_each(tmp_path, words):
    """The first answer has two, and the second none: it is not written."""
    template = marked(
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ '<s>' + m.content }}{% elif loop.index == 2 %}({{ m.content }}){{ ' ' }}({{ m.content + '</s>' }})"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(trireme.DataError, match=r"row 0: message 3 \(assistant\): its content, 'Hello'"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], template, [{"messages": chat_of("Hi", "Hello", words, "Hello")}])


def test_tools_that_a_template_does_not_write_are_refused(tmp_path):
    tool = {"type": "function", "function": {"name": "fine", "parameters": {}}}
    with pytest.raises(trireme.DataError, match="row 0: the tool 'fine' is not in the chat"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [{**GOOD, "tools": [tool]}])


@pytest.mark.parametrize("name", ["continue_final_message", "add_generation_prompt", "messages", "tools", "chat_template"])
def test_values_that_are_not_the_templates_are_refused(tmp_path, name):
    with pytest.raises(trireme.DataError, match=f"row 0: chat_template_kwargs has '{name}'"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [{**GOOD, "chat_template_kwargs": {name: True}}])


def fingerprint_of(tmp_path, tokenizer, *texts):
    tokenized(tmp_path, tokenizer, plain(CHATML), [{"messages": chat_of(*texts)}])
    written = json.loads((tmp_path / "set.set.json").read_text())
    return written["vocabulary"], written["vocabulary_sha256"]


def test_a_token_that_was_added_to_the_tokenizer_of_a_file_does_not_make_another_fingerprint(tmp_path):
    byte_level().save_pretrained(tmp_path / "model")
    expected = fingerprint_of(tmp_path, transformers.AutoTokenizer.from_pretrained(tmp_path / "model"), "Hi", "Hello")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_tokens(["<added>"])
    assert fingerprint_of(tmp_path, tokenizer, "Hi", "Hello") == expected
    assert fingerprint_of(tmp_path, tokenizer, "Hi", "Hello<added>")[0] == expected[0] + 1  # it is read


def test_a_token_that_was_added_behind_all_is_in_no_fingerprint_of_a_tokenizer_without_a_name(tmp_path):
    byte_level().save_pretrained(tmp_path / "model")
    prints = []
    for added in ({}, {"pad_token": "<pad>"}):
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "model" / "tokenizer.json"))
        tokenizer.add_special_tokens(added)
        prints.append(fingerprint_of(tmp_path, tokenizer, "Hi", "Hello"))
        assert json.loads((tmp_path / "set.set.json").read_text())["tokenizer"] == "without a name"
    assert prints[0] == prints[1]
    assert fingerprint_of(tmp_path, tokenizer, "Hi", "Hello<pad>")[0] == prints[0][0] + 1  # it is read


def test_chats_mix_with_chats_and_text_of_their_tokenizer_and_of_no_other(tmp_path):
    def mixes(*names):
        sets = [word for name in names for word in ("--set", tmp_path / name)]
        done = subprocess.run([BINARY, "mix", *sets, "--output", tmp_path / "mixed", "--overwrite"], capture_output=True, text=True)
        assert done.returncode == 0 or "tokenizers of other tokens" in done.stderr, done.stderr
        return done.returncode == 0

    byte_level().save_pretrained(tmp_path / "model")
    other = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    words = other["model"]["vocab"]
    words["X"], words["Y"] = words["Y"], words["X"]
    in_memory = of_transformers(tokenizers.Tokenizer.from_str(json.dumps(other)))  # no file has it
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    loaded.add_special_tokens({"pad_token": "<pad>"})
    for name, tokenizer, answer in (("few", loaded, "a"), ("many", loaded, " thanks"), ("other", in_memory, "a"), ("others", in_memory, " thanks")):
        tokenizer.chat_template = plain(CHATML)
        trireme.tokenize_chats(tokenizer, [{"messages": chat_of("Hi", answer)}], tmp_path / name)
    (tmp_path / "in.txt").write_text("Hi")
    run(tmp_path, "tokenize", "--tokenizer", "model", "--input", "in.txt", "--output", "text")
    assert mixes("few", "many") and mixes("few", "text") and mixes("other", "others")
    assert not mixes("few", "other") and not mixes("text", "others")


def test_what_a_tables_row_lacks_is_not_written_as_null(tmp_path):
    """Arrow gives each row the names of all, at every depth."""
    from datasets import Dataset

    def row(name, *arguments):
        properties = {argument: {"type": "string", "description": argument} for argument in arguments}
        tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": [*arguments]}}}
        call = {"type": "function", "function": {"name": name, "arguments": {argument: "Rome" for argument in arguments}}}
        chat = [chat_of("Hi")[0], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "thanks"}, {"role": "assistant", "content": "Bye"}]
        return {"messages": chat, "tools": [tool], "chat_template_kwargs": {"given": {argument: 1 for argument in arguments}}}

    tokenizer, rows = TOKENIZERS["byte-level"], [row("weather", "city"), row("sum", "a", "b")]
    template = "{{ given | tojson }}" + (TRL_TEMPLATES / "qwen3_instruct_2507.jinja").read_text()
    table = Dataset.from_list(rows)
    assert table[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome", "a": None, "b": None}
    expected = tokenized(tmp_path, tokenizer, template, rows)
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in predicted_text(tokenizer, *expected[0])[0]
    assert tokenizer.decode(expected[0][0]).startswith('{"city": 1}')
    assert tokenized(tmp_path, tokenizer, template, table) == expected


def test_what_a_row_gives_the_template_is_told_as_by_apply_chat_template(tmp_path):
    tokenizer, template = TOKENIZERS["byte-level"], "{{ mood is defined }}" + plain(LLAMA3)
    given = [{"mood": None}, {"mood": "good"}, {"bos_token": "<|im_start|>"}]
    rows = [{"messages": chat_of("Hi", "Hello"), "chat_template_kwargs": values} for values in given]
    got = tokenized(tmp_path, tokenizer, template, rows)
    for values, (ids, _) in zip([{}, *given[1:]], got):
        assert ids == tokenizer.apply_chat_template(chat_of("Hi", "Hello"), **values)["input_ids"]
    assert [tokenizer.decode(ids)[:5] for ids, _ in got] == ["False", "True<", "False"]


def test_content_in_parts_is_taken_where_the_template_takes_it(tmp_path):
    tokenizer = TOKENIZERS["byte-level"]
    chat = chat_of("Hi", "Hello")
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    template = plain(CHATML).replace("m.content", "(m.content if m.content is string else m.content | map(attribute='text') | join(''))")
    rows = [{"messages": chat}, {"messages": parts}]
    first, second = tokenized(tmp_path, tokenizer, template, rows)
    assert first == second
    for template in (plain(LLAMA3), plain(CHATML), plain(CHATML).replace("m.content", "(m.content if m.content is string else '')")):
        with pytest.raises(trireme.DataError, match="row 1: .*(does not take content in parts|cannot write)"):
            tokenized(tmp_path, tokenizer, template, rows)
    parts_alone = plain(CHATML).replace("m.content", "(m.content | map(attribute='text') | join(''))")
    with pytest.raises(trireme.DataError, match="row 0: message 0 .*writes for it: leave it or the row out, or name it .*content as a list of parts"):
        tokenized(tmp_path, tokenizer, parts_alone, rows)


def test_a_chat_may_be_longer_than_a_batch(tmp_path, monkeypatch):
    tokenizer, rows = TOKENIZERS["byte-level"], [{"messages": chat_of(*SAID[:2] * (1 + place % 3))} for place in range(20)]
    expected = tokenized(tmp_path, tokenizer, plain(CHATML), rows)
    assert len(expected) == 20
    for characters in (1, 150):
        monkeypatch.setattr(sys.modules["trireme.tokenize_chats"], "BATCH_CHARACTERS", characters)
        assert tokenized(tmp_path, tokenizer, plain(CHATML), iter(rows)) == expected


def with_a_gap():
    """The id of "Q" is 1000, behind all others."""
    described = json.loads(byte_level().backend_tokenizer.to_str())
    described["model"]["vocab"]["Q"] = 1000
    return of_transformers(tokenizers.Tokenizer.from_str(json.dumps(described)))


def test_ids_may_have_gaps(tmp_path):
    tokenizer = with_a_gap()
    ((ids, is_target),) = tokenized(tmp_path, tokenizer, plain(CHATML), [{"messages": chat_of("Hi", "Q")}])
    assert (1000, True) in zip(ids, is_target) and len(tokenizer.get_vocab()) < 1000


@pytest.mark.parametrize("make", [byte_level, with_a_gap])
def test_the_fingerprint_is_of_the_tokenizer_and_the_set(tmp_path, make):
    tokenizer, rows = make(), [GOOD, {"messages": chat_of("Bye", "See you", "What?", "No")}]
    tokenizer.name_or_path = "some/model"
    documents = tokenized(tmp_path, tokenizer, plain(CHATML), rows)
    vocabulary = sorted((number, token.encode()) for token, number in tokenizer.get_vocab().items())
    lines = b"".join(str(number).encode() + b" " + str(len(token)).encode() + b" " + token + b"\n" for number, token in vocabulary)
    assert json.loads((tmp_path / "set.set.json").read_text()) == {
        "format": 1, "tokenizer": "some/model", "tokenizer_sha256": "", "vocabulary_sha256": hashlib.sha256(lines).hexdigest(), "vocabulary": len(vocabulary),
        "end_of_text_appended": False, "documents": 2, "tokens": sum(len(ids) for ids, _ in documents),
        "prompt_tokens": sum(not flag for _, flags in documents for flag in flags), "largest_id": max(max(ids) for ids, _ in documents),
        "answer_end_tokens": {"<|im_end|>": tokenizer.convert_tokens_to_ids("<|im_end|>")}, "chat_template": plain(CHATML),
    }  # fmt: skip


def test_a_disk_without_room_for_the_fingerprint_is_named_and_nothing_is_left(tmp_path):
    tokenizer = byte_level()
    tokenized(tmp_path, tokenizer, plain(CHATML), [{"messages": chat_of("Bye", "See you")}])
    before = files_in(tmp_path)
    assert len(before["set.set.json"]) > 200 > max(len(before["set.bin"]), len(before["set.idx"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(trireme.DataError, match=r"set\.set\.json: cannot be written: File too large"):
            tokenized(tmp_path, tokenizer, plain(CHATML), [GOOD])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("fails", [None, "set.bin", "set.set.json", "set.idx"])
def test_an_index_never_lies_beside_another_sets_tokens_or_fingerprint(tmp_path, monkeypatch, fails):
    tokenizer, seen, replace = byte_level(), [], os.replace
    tokenized(tmp_path, tokenizer, plain(CHATML), [{"messages": chat_of("Bye", "See you")}])
    old = files_in(tmp_path)

    def watched(source, target):
        if os.path.basename(target) == fails:
            raise OSError(5, "Input/output error")
        replace(source, target)
        seen.append({name: data != old[name] for name, data in files_in(tmp_path).items() if "partial" not in name})

    monkeypatch.setattr(os, "replace", watched)
    if fails is None:
        tokenized(tmp_path, tokenizer, plain(CHATML), [GOOD])
        assert sorted(files_in(tmp_path)) == sorted(old)
    else:
        with pytest.raises(trireme.DataError, match="Input/output error"):
            tokenized(tmp_path, tokenizer, plain(CHATML), [GOOD])
        assert files_in(tmp_path) == {}
    order = ["set.bin", "set.set.json", "set.idx"]
    steps = order.index(fails) if fails else 3
    assert seen == [dict.fromkeys(order[: step + 1], True) for step in range(steps)]


def test_the_tokenizer_is_left_as_it_was(tmp_path):
    tokenizer = byte_level()
    before = tokenizer.backend_tokenizer.to_str()
    tokenized(tmp_path, tokenizer, plain(CHATML), [{"messages": chat_of("Hi", "Hello")}])
    assert tokenizer.backend_tokenizer.to_str() == before
