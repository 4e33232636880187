"""A set of chats says in which tokens its answers end, and by which template they are written; the model that is trained on it stops there, and
has that template. Who makes one is told where a model would not stop.
"""

import json
import re
import warnings

import pytest
import transformers
import trireme
import trireme.chats
from chat_cases import CHATML, GOOD, TEMPLATES, TOKENIZERS, byte_level, chat_of, plain, tokenized
from program import make_tiny, run

ENDS = {style: end for style, (_, _, _, end) in TEMPLATES.items()}
TWO = {"messages": chat_of("Hi", "Hello", "Bye", "See you")}


def ends_of(tmp_path):
    return json.loads((tmp_path / "set.set.json").read_text())["answer_end_tokens"]


def warned(tmp_path, tokenizer, template=plain(CHATML)):
    tokenizer.chat_template = template
    with warnings.catch_warnings(record=True) as all_warnings:
        warnings.simplefilter("always")
        trireme.tokenize_chats(tokenizer, [GOOD], tmp_path / "set", overwrite=True)
    return [str(one.message) for one in all_warnings if issubclass(one.category, UserWarning)]


@pytest.mark.filterwarnings("ignore:.*would run on behind each answer")
@pytest.mark.parametrize("name", ["byte-level", "metaspace"])
@pytest.mark.parametrize("style", TEMPLATES)
def test_the_set_names_the_token_behind_its_answers(tmp_path, style, name):
    tokenizer = TOKENIZERS[name]
    tokenized(tmp_path, tokenizer, plain(TEMPLATES[style][0]), [GOOD, TWO])
    assert ends_of(tmp_path) == {ENDS[style]: tokenizer.convert_tokens_to_ids(ENDS[style])}


@pytest.mark.filterwarnings("ignore:.*would run on behind each answer")
def test_an_answer_before_a_message_is_no_end_and_a_calls_may_be_another(tmp_path):
    """As gpt-oss's: <|end|> before a message stands within answers too, <|return|> ends the last and <|call|> a call."""
    template = """{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
{{ '<|im_end|>' if not loop.last else '<|eot_id|>' if m.call else '</s>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"""
    asks = {"messages": chat_of("Hi", "Hello", "Bye")}
    call = {"messages": [chat_of("Hi")[0], {"role": "assistant", "content": "fine()", "call": True}]}
    tokenizer = TOKENIZERS["byte-level"]
    numbers = {token: tokenizer.convert_tokens_to_ids(token) for token in ("</s>", "<|eot_id|>")}
    for rows, expected in (([TWO, asks], {"</s>": numbers["</s>"]}), ([TWO, call, asks], numbers)):
        tokenized(tmp_path, tokenizer, template, rows)
        assert ends_of(tmp_path) == expected


@pytest.mark.filterwarnings("ignore:.*would run on behind each answer")
def test_white_space_within_the_marks_is_no_end(tmp_path):
    """As TRL's templates of Qwen3 and LFM2 have it."""
    template = """{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\n' }}\
{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"""
    for name in ("byte-level", "metaspace"):
        tokenizer = TOKENIZERS[name]
        tokenized(tmp_path, tokenizer, template, [GOOD, TWO])
        assert ends_of(tmp_path) == {"<|im_end|>": tokenizer.convert_tokens_to_ids("<|im_end|>")}


def test_a_word_is_no_end(tmp_path):
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    (words,) = warned(tmp_path, TOKENIZERS["byte-level"], template)
    assert re.match("row 0: its last answer ends in .*assistant: Hello', which is no special token", words) and ends_of(tmp_path) == {}


def test_an_end_at_which_a_base_model_does_not_stop_is_warned_of_with_both_tokens(tmp_path):
    tokenizer = byte_level()
    end, eos = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "</s>"))
    (words,) = warned(tmp_path, tokenizer)
    assert f"the answers end in '<|im_end|>' ({end}), and a model of this tokenizer stops at '</s>' ({eos})" in words
    assert "`trireme train` on this set adds" in words
    assert warned(tmp_path, tokenizer, plain(TEMPLATES["mistral"][0])) == []  # it ends in </s>


@pytest.mark.parametrize("is_list", [False, True])
def test_the_models_generation_config_tells_where_it_stops_too(tmp_path, is_list):
    byte_level().save_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    end, other = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|eot_id|>"))
    for stop, expected in ((end, 0), (other, 1)):
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop] if is_list else stop}))
        words = warned(tmp_path, tokenizer)
        assert len(words) == expected
        assert all("'</s>'" in one and f"'<|eot_id|>' ({other})" in one for one in words)


CHATS = [chat_of("Who?", "I am.", "And then?", "Nothing more."), chat_of("Short?", "A long answer " + "y" * 20)]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    """A base model with a token for chats, of which its generation_config.json knows nothing, and a set of chats that end in it."""
    folder = tmp_path_factory.mktemp("ends")
    make_tiny(folder / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(folder / "model")
    (folder / "model/generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))
    tokenizer.chat_template = plain(CHATML)
    with pytest.warns(UserWarning, match="answers end in '<|im_end|>'"):
        trireme.tokenize_chats(tokenizer, [{"messages": chat} for chat in CHATS], folder / "chats")
    return folder, tokenizer


def train(folder, output, *words, model="model", data="chats"):
    return run(folder, "train", "--model_name_or_path", model, "--train_file", data, "--output_dir", output, "--packing", "best_fit", "--max_seq_length",
               128, "--max_steps", 1, "--per_device_train_batch_size", 1, "--device", "cpu", "--threads", 1, "--peak_tflops", 1, "--report_to", "none", *words)  # fmt: skip


def test_a_model_that_was_trained_on_chats_stops_where_their_answers_end(base_model, tmp_path):
    folder, tokenizer = base_model
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    said = train(folder, tmp_path / "run")
    line = f'checkpoints: generation_config.json: eos_token_id is now [{stops[0]}, {stops[1]}], as answers of the chats end in "<|im_end|>" ({stops[1]})\n'
    assert said.count(line) == 1
    run(folder, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "trained")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert model.generation_config.eos_token_id == stops
    assert json.loads((folder / "model/generation_config.json").read_text()) == {"eos_token_id": stops[0]}


def test_a_template_given_for_the_chats_is_that_of_the_trained_model(base_model, tmp_path, capsys):
    folder, _ = base_model
    template = plain(CHATML) + "{# given #}"
    (tmp_path / "given.jinja").write_text(template)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    words = ["--tokenizer", folder / "model", "--input", tmp_path / "chats.jsonl", "--output", tmp_path / "given", "--chat_template_path", tmp_path / "given.jinja"]
    assert trireme.chats.main([str(word) for word in words]) == 0
    assert "would run on" in capsys.readouterr().err
    said = train(folder, tmp_path / "run", data=tmp_path / "given")
    assert said.count("checkpoints: chat_template.jinja: the chat template by which the chats were written\n") == 1
    run(folder, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "trained")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "trained").chat_template == template
    assert not (folder / "model/chat_template.jinja").exists()
    said = train(folder, tmp_path / "again", model=tmp_path / "trained", data=tmp_path / "given")
    assert "checkpoints:" not in said and (tmp_path / "again/checkpoints/step-1/chat_template.jinja").read_text() == template


def test_an_adapter_is_exported_with_the_ends_of_its_chats(base_model, tmp_path):
    folder, tokenizer = base_model
    train(folder, tmp_path / "run", "--lora_r", 4)
    for words in ([], ["--merge", "--overwrite"]):
        run(folder, "export", "--checkpoint", tmp_path / "run", "--out", tmp_path / "trained", *words)
        stops = transformers.GenerationConfig.from_pretrained(tmp_path / "trained").eos_token_id
        assert stops == [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
