"""Chat templates, tokenizers and readings of sets that the tests of chats share."""

import importlib.util
import pathlib
import re

import tokenizers
import transformers
import trireme
from test_token_set import read_set
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

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
