"""`trireme tokenize` gives the ids of the Hugging Face tokenizers library on random text of every script, and on source
code, with larger vocabularies; and what it writes is Megatron-LM's indexed dataset."""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

import numpy
import pytest
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/tokenizer/fixtures"
BINARY = os.environ.get("TRIREME_BINARY", str(ROOT / "build/cpu/bin/trireme"))


def tokenize(*arguments):
    return subprocess.run([BINARY, "tokenize", *map(str, arguments)], capture_output=True, text=True, check=True)


def read_indexed(prefix):
    """The format as Megatron-LM's documentation has it; shares nothing with Trireme's reader."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1 and documents == sequences + 1
    sizes = numpy.frombuffer(index, numpy.int32, sequences, 34)
    pointers = numpy.frombuffer(index, numpy.int64, sequences, 34 + 4 * sequences)
    assert numpy.frombuffer(index, numpy.int64, documents, 34 + 12 * sequences).tolist() == list(range(documents))
    dtype = {8: numpy.uint16, 4: numpy.int32}[code]
    data = pathlib.Path(f"{prefix}.bin").read_bytes()
    return [numpy.frombuffer(data, dtype, n, p).tolist() for n, p in zip(sizes.tolist(), pointers.tolist())]


def random_texts(count, seed):
    rng = random.Random(seed)
    scalars = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    blocks = [range(0x20, 0x7F), range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x530), range(0x590, 0x700),
              range(0x900, 0xE00), range(0xE00, 0x1000), range(0x1100, 0x1200), range(0x1E00, 0x2070),
              range(0x2000, 0x2C00), range(0x3000, 0x3100), range(0x4E00, 0x5000), range(0xAC00, 0xAD00),
              range(0xF900, 0xFB50), range(0xFE00, 0x10000), range(0x1F1E6, 0x1F700), range(9, 33)]
    words = ["<|endoftext|>", "<|im_end|>", "<tool>", "<left>", "<right>", "<both>", "word", "café", "Cafe\u0301", "aa",
             " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "don't", "123", "4567", "the", "ing", "\u200d", "\ufe0f", "e\u0301"]
    for _ in range(count):
        text = []
        for _ in range(rng.randint(1, 30)):
            kind = rng.random()
            if kind < 0.35:
                text.append(rng.choice(words))
            elif kind < 0.9:
                block = rng.choice(blocks)
                text.append("".join(chr(rng.choice(block)) for _ in range(rng.randint(1, 6))))
            else:
                text.append(chr(rng.choice(scalars)))
        yield "".join(text)


def check(tokenizer_file, texts, folder):
    lines = folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    tokenize("--tokenizer", tokenizer_file, "--input", lines, "--output", folder / "set", "--no_append_eos")
    expected = [e.ids for e in tokenizers.Tokenizer.from_file(str(tokenizer_file)).encode_batch(texts)]
    got = read_indexed(folder / "set")
    assert len(got) == len(expected)
    for text, ours, theirs in zip(texts, got, expected):
        assert ours == theirs, ascii(text)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen", "flags"])
def test_random_text_of_every_script(kind, tmp_path):
    check(FIXTURES / f"{kind}_tokenizer.json", list(random_texts(1500, seed=1)), tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen", "flags"])
def test_every_character_alone_and_beside_others(kind, tmp_path):
    # Both ends of the great planes stand for what lies between them, which is all alike.
    planes = [range(0x20000), range(0x2A600, 0x2BC00, 64), range(0x2EB00, 0x2FB00), range(0x31300, 0x32400, 16),
              range(0xE0000, 0xE0200), range(0x10FF00, 0x110000)]
    texts = []
    for first in sorted({c // 64 * 64 for plane in planes for c in plane}):
        characters = [chr(c) for c in range(first, first + 64) if not 0xD800 <= c <= 0xDFFF]
        if characters:
            texts.append(" a".join(characters))
            texts.append("".join(c + "word" + c for c in characters))
    check(FIXTURES / f"{kind}_tokenizer.json", texts, tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen"])
def test_source_code_with_a_large_vocabulary(kind, tmp_path):
    files = sorted(pathlib.Path(json.__file__).parent.parent.glob("*.py"))[:150]
    texts = [f.read_text(errors="replace") for f in files if f.stat().st_size]
    settings = json.loads((FIXTURES / f"{kind}_tokenizer.json").read_text())
    settings.update(added_tokens=[], post_processor=None)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=70000, min_frequency=2, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    check(tmp_path / "tokenizer.json", texts, tmp_path)


def test_end_of_text_ends_each_document(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two<|endoftext|>")
    tokenize("--tokenizer", FIXTURES / "gpt2_tokenizer.json", "--input", tmp_path / "a.txt", tmp_path / "b.txt",
             "--output", tmp_path / "set")
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "gpt2_tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    assert read_indexed(tmp_path / "set") == [tokenizer.encode("one").ids + [end], tokenizer.encode("two").ids + [end]]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
