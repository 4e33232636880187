"""trireme.tokenize_chats: the model is trained on what the assistant has to produce, and on nothing else.

Judged by what was said and by bytes of tokens, by transformers' own masks, and by templates that TRL marked by hand.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys

import pytest
import tokenizers
import transformers
import trireme
import trireme.chats
from test_token_set import files_in, read_set
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

# In some tokenizers here the templates' marks are no special tokens.
pytestmark = pytest.mark.filterwarnings("ignore:.*which is no special token")

TRL_TEMPLATES = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>", "<think>", "</think>"]  # fmt: skip

# (...) is what the assistant is to produce: a mark, or nothing.
CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}({{ m.content + '<|im_end|>' }}){% else %}\
{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA3 = """{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{% if m.role == 'assistant' %}\
({{ m.content | trim + '<|eot_id|>' }}){% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}({{ ' ' + m.content + eos_token }}){% else %}\
{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"""
GEMMA = """{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' }}{% if m.role == 'assistant' %}{{ 'model\n' }}({{ m.content | trim + '<end_of_turn>' }})\
{{ '\n' }}{% else %}{{ m.role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
TEMPLATES = {  # with what stands before what the assistant is to produce, how that begins, and how it ends
    "chatml": (CHATML, "<|im_start|>assistant\n", "", "<|im_end|>"),
    "llama3": (LLAMA3, "<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>"),
    "mistral": (MISTRAL, " [/INST]", " ", "</s>"),
    "gemma": (GEMMA, "<start_of_turn>model\n", "", "<end_of_turn>"),
}
# Drops the reasoning of all answers but the last, as Qwen3's does.
FORGETS = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and not loop.last %}\
{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

SAID = ["Hi there.", "Hello! How are you?", "Fine  thanks,   see\n\nyou.\n", "  Bye \u00e9\u4eba\U0001f600 1 2\n  3"]
CORPUS = [*SAID, "system user assistant model [INST] [/INST] \n\n hello there how are you fine thanks bye"] * 4


def plain(template):
    return re.sub(r"\((?=\{\{)|(?<=\}\})\)", "", template)


def marked(template):
    return re.sub(r"(?<=\}\})\)", "{% endgeneration %}", re.sub(r"\((?=\{\{)", "{% generation %}", template))


def byte_level(words=True, special=SPECIAL):
    """words: merges stay within words; else they cross any border. As in GPT-2 and Llama-3, offsets are without spaces."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    bos = [processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])] if "<s>" in special else []
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), *bos])
    return of_transformers(tokenizer)


def metaspace():
    """As Llama-2's: a space before every text, bytes for characters that it does not know, <s> put before."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False)
    tokenizer.train_from_iterator([text.replace("\n", "").replace("\U0001f600", "") for text in CORPUS], trainer)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return of_transformers(tokenizer)


def of_transformers(tokenizer):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {
    "byte-level": byte_level(),
    "merges across borders": byte_level(words=False),
    "merges across borders, marks in pieces": byte_level(words=False, special=[]),
    "metaspace": metaspace(),
}


def chat_of(*texts):
    return [{"role": "user" if place % 2 == 0 else "assistant", "content": text} for place, text in enumerate(texts)]


GOOD = {"messages": chat_of("Hi", "Hello")}


def tokenized(tmp_path, tokenizer, template, chats, **options):
    """Each chat's ids and is_target, as they stand in the files."""
    tokenizer.chat_template = template
    trireme.tokenize_chats(tokenizer, chats, tmp_path / "set", overwrite=True, **options)
    return [([one for one, _ in document], [flag for _, flag in document]) for document in read_set(tmp_path / "set")[0]]


def predicted_text(tokenizer, ids, is_target):
    """The targets' text, a piece for each stretch."""
    pieces, before = [], False
    for one, flag in zip(ids, is_target):
        pieces += [[]] if flag and not before else []
        if flag:
            pieces[-1].append(one)
        before = flag
    return [tokenizer.decode(piece, clean_up_tokenization_spaces=False) for piece in pieces]


def token_bytes(tokenizer, one):
    """Of a byte-level tokenizer, by its alphabet alone: byte b is the b-th of the printable characters, or 256 and on."""
    token = tokenizer.convert_ids_to_tokens(one)
    if token in tokenizer.get_added_vocab():
        return token.encode()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
    return bytes(letters[letter] for letter in token)


def targets_by_bytes(tokenizer, ids, header, answers):
    """A token is a target where it has a byte of an answer; answers are found in the text one after another, by their header."""
    pieces = [token_bytes(tokenizer, one) for one in ids]
    text, at = b"".join(pieces), 0
    wanted = bytearray(len(text))
    for answer in answers:
        begin = text.index((header + answer).encode(), at) + len(header.encode())
        at = begin + len(answer.encode())
        wanted[begin:at] = b"\1" * (at - begin)
    is_target, at = [], 0
    for piece in pieces:
        is_target.append(any(wanted[at : at + len(piece)]))
        at += len(piece)
    return is_target


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
    (tmp_path / "a.jsonl").write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows[:1]))
    (tmp_path / "b.jsonl").write_text("\n" + "".join(json.dumps(row) for row in rows[1:]))
    paths = [tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")]
    expected = tokenized(tmp_path, tokenizer, plain(CHATML), rows)
    assert len(expected) == 2 and tokenizer.decode(expected[0][0]).count("Be brief.") == 1
    for chats in (iter(rows), Dataset.from_list(rows), Dataset.from_list(sharegpt), sharegpt, paths, tuple(paths)):
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


def test_tools_that_a_template_does_not_write_are_refused(tmp_path):
    tool = {"type": "function", "function": {"name": "fine", "parameters": {}}}
    with pytest.raises(trireme.DataError, match="row 0: the tool 'fine' is not in the chat"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [{**GOOD, "tools": [tool]}])


@pytest.mark.parametrize("name", ["continue_final_message", "add_generation_prompt", "messages", "tools", "chat_template"])
def test_values_that_are_not_the_templates_are_refused(tmp_path, name):
    with pytest.raises(trireme.DataError, match=f"row 0: chat_template_kwargs has '{name}'"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], plain(CHATML), [{**GOOD, "chat_template_kwargs": {name: True}}])


def test_a_token_that_transformers_adds_does_not_make_another_fingerprint(tmp_path):
    prints = []
    for added in ([], ["<added>"]):
        tokenizer = byte_level()
        tokenizer.add_tokens(added)
        tokenized(tmp_path, tokenizer, plain(CHATML), [GOOD])
        prints.append((tmp_path / "set.set.json").read_text())
    assert prints[0] == prints[1]


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
    with pytest.raises(trireme.DataError, match="row 0: message 0 .*does not take it so; name it .*content as a list of parts"):
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
    largest = max(max(ids) for ids, _ in documents)
    vocabulary = sorted((number, token.encode()) for token, number in tokenizer.get_vocab().items() if number <= largest)
    lines = b"".join(str(number).encode() + b" " + str(len(token)).encode() + b" " + token + b"\n" for number, token in vocabulary)
    assert json.loads((tmp_path / "set.set.json").read_text()) == {
        "format": 1, "tokenizer": "some/model", "tokenizer_sha256": "", "vocabulary_sha256": hashlib.sha256(lines).hexdigest(), "vocabulary": len(vocabulary),
        "end_of_text_appended": False, "documents": 2, "tokens": sum(len(ids) for ids, _ in documents),
        "prompt_tokens": sum(not flag for _, flags in documents for flag in flags),
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


REFUSED_ROWS = {
    "row 1 has no message of the assistant": {"messages": chat_of("Hi")},
    "row 1 has no message of the assistant to": {"prompt": chat_of("Hi", "Hello"), "completion": chat_of("Bye")},
    "row 1 has the names 'text'; expected": {"text": "Hi"},
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
    with pytest.raises(trireme.ConfigError, match="chats: got transformers 5.22.1, expected 5.23.x, by which chat templates are tested"):
        tokenized(tmp_path, byte_level(), plain(CHATML), [GOOD])
    with pytest.raises(trireme.ConfigError, match="trireme.parallelize: got transformers 5.22.1, expected 5.23.x, whose masks"):
        with trireme.parallelize(None):
            pass


def test_a_chat_template_that_never_ends_an_answer_is_warned_of(tmp_path):
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    with pytest.warns(UserWarning, match="row 0: its last answer ends in .*assistant: Hello', which is no special token"):
        tokenized(tmp_path, TOKENIZERS["byte-level"], template, [GOOD, GOOD])


# `python -m trireme.chats`, after a look at what the package alone imports.
COMMAND = """
import runpy, sys, trireme
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


def test_the_command_writes_the_set_and_says_how_to_go_on(folder):
    words = ["--tokenizer", folder / "model", "--input", folder / "chats.jsonl", "--output", folder / "set"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *map(str, words)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (document,) = read_set(folder / "set")[0]
    targets = sum(flag for _, flag in document)
    assert f"tokens              {len(document)}\n" in done.stdout and f"predicted           {targets} ({targets / len(document):.1%})" in done.stdout
    assert f"longest document    {len(document)} tokens" in done.stdout and "left out            0" in done.stdout
    assert f"--train_file {folder / 'set'} --packing best_fit --max_seq_length" in done.stdout


def test_the_command_ends_with_the_codes_of_the_program(folder, capsys):
    given = ["--tokenizer", folder / "model", "--output", folder / "set", "--input"]
    (folder / "bad.jsonl").write_text("{}\n")
    (folder / "marks.jinja").write_text(marked(CHATML).replace("<|im_end|>", "</s>"))
    assert command(capsys, *given, folder / "bad.jsonl")[::2] == (
        65,
        f"trireme.chats: DataError: {folder}/bad.jsonl:1 has no names; {trireme.chat_rows.EXPECTED}\n",
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
