"""`trireme tokenize` gives the ids of the Hugging Face tokenizers library on random text of every script, and on source
code, with larger vocabularies; and what it writes is Megatron-LM's indexed dataset."""
import json
import pathlib
import random
import struct
import unicodedata

import numpy
import pytest
import tokenizers

from program import run

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/tokenizer/fixtures"


def tokenize(*arguments):
    return run(".", "tokenize", *arguments)


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
             "<s>", "[MASK]", "<0x0A>", "\u2581", "two  spaces", "    ", "\n\n\n", "\u0000", "\u200b", "\ufffd", "=", "straße", "Über",
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
    folder.mkdir(exist_ok=True)
    lines = folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    tokenize("--tokenizer", tokenizer_file, "--input", lines, "--output", folder / "set", "--no_append_eos")
    theirs = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    begin = theirs.encode("").ids[:1]
    expected = [e.ids for e in theirs.encode_batch(texts)]
    # A set holds the first token once, where a text begins with it too.
    expected = [ids[1:] if begin and ids[:2] == begin * 2 else ids for ids in expected]
    got = read_indexed(folder / "set")
    assert len(got) == len(expected)
    for text, ours, theirs in zip(texts, got, expected):
        assert ours == theirs, ascii(text)


KINDS = ["gpt2", "llama3", "qwen", "flags", "llama2", "mistral", "gemma", "no_bytes", "bert", "bert_cased"]


@pytest.mark.parametrize("kind", KINDS)
def test_random_text_of_every_script(kind, tmp_path):
    check(FIXTURES / f"{kind}_tokenizer.json", list(random_texts(1500, seed=1)), tmp_path)


@pytest.mark.parametrize("prepend", ["never", "first", "always"])
def test_a_piece_ends_before_each_space(prepend, tmp_path):
    """Also where a piece does not begin with one; mistral's merges cross spaces, so that the ids show where pieces end."""
    tokenizer = json.loads((FIXTURES / "mistral_tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": prepend, "split": True}
    tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    short = [a + " " + b for a in "abcdefghijklmnopqrstuvwxyz" for b in ("a", "i", "t", "the", "of", "s ", " a")]
    check(tmp_path / "tokenizer.json", short + list(random_texts(200, seed=2)), tmp_path)


def groups_of_characters():
    # Both ends of the great planes stand for what lies between them, which is all alike.
    planes = [range(0x20000), range(0x2A600, 0x2BC00, 64), range(0x2EB00, 0x2FB00), range(0x31300, 0x32400, 16),
              range(0xE0000, 0xE0200), range(0x10FF00, 0x110000)]
    for first in sorted({c // 64 * 64 for plane in planes for c in plane}):
        characters = [chr(c) for c in range(first, first + 64) if not 0xD800 <= c <= 0xDFFF]
        if characters:
            yield characters


@pytest.mark.parametrize("kind", KINDS)
def test_every_character_alone_and_beside_others(kind, tmp_path):
    texts = [text for characters in groups_of_characters()
             for text in (" a".join(characters), "".join(c + "word" + c for c in characters))]
    check(FIXTURES / f"{kind}_tokenizer.json", texts, tmp_path)


@pytest.mark.parametrize("options", [{}, {"lowercase": False, "strip_accents": True, "clean_text": False},
                                     {"clean_text": False, "handle_chinese_chars": False, "lowercase": False}])
def test_every_character_of_bert_shows_in_the_ids(options, tmp_path):
    """With a token for each character at the beginning of a word and in it, nothing hides behind the unknown token."""
    characters = [c for group in groups_of_characters() for c in group if c != "\0"]
    vocabulary = {token: i for i, token in enumerate(["[UNK]", *characters, *("##" + c for c in characters)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rng = random.Random(3)
    marks = [c for c in characters if unicodedata.category(c)[0] == "M"]
    texts = [text for i in range(0, len(characters), 32) for text in ("".join(characters[i:i + 32]), "a".join(characters[i:i + 32]))]
    texts += ["".join(rng.choice(marks if rng.random() < 0.6 else characters) for _ in range(12)) for _ in range(8000)]
    check(tmp_path / "tokenizer.json", texts, tmp_path)


def trained_on(texts, kind):
    """The fixture's tokenizer with a large vocabulary of the texts, made by the library's own trainer."""
    settings = json.loads((FIXTURES / f"{kind}_tokenizer.json").read_text())
    settings.update(added_tokens=[], post_processor=None)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
    trainer, special = tokenizers.trainers.BpeTrainer, ["<|endoftext|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    if kind in ("llama2", "mistral"):
        special, alphabet = ["<unk>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)], []
        texts = [line for text in texts for line in text.splitlines(keepends=True)]
        tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace() if kind == "llama2" else None
    if kind == "bert":
        trainer, special, alphabet = tokenizers.trainers.WordPieceTrainer, ["[UNK]", "[CLS]", "[SEP]"], []
    tokenizer.train_from_iterator(texts, trainer(vocab_size=70000, min_frequency=2, show_progress=False, initial_alphabet=alphabet,
                                                 special_tokens=special))
    trained = json.loads(tokenizer.to_str())
    trained["added_tokens"] = [token for token in trained["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps({**trained, "normalizer": settings["normalizer"], "pre_tokenizer": settings["pre_tokenizer"]})


SLOW = [pytest.param(kind, 150, marks=pytest.mark.slow) for kind in ("llama3", "llama2", "bert", "gpt2", "qwen", "mistral")]


@pytest.mark.parametrize("kind, files", [("llama3", 50), ("llama2", 50), ("bert", 50), *SLOW])
def test_source_code_with_a_large_vocabulary(kind, files, tmp_path):
    """50 files make some 15,000, 30,000 and 8,000 tokens; 150 twice as many."""
    files = sorted(pathlib.Path(json.__file__).parent.parent.glob("*.py"))[:files]
    texts = [f.read_text(errors="replace") for f in files if f.stat().st_size]
    (tmp_path / "tokenizer.json").write_text(trained_on(texts, kind))
    check(tmp_path / "tokenizer.json", texts, tmp_path)
    check(tmp_path / "tokenizer.json", list(random_texts(1500, seed=2)), tmp_path / "random")


@pytest.mark.parametrize("text", ["a" * 300_000, "ha " * 100_000, "\u4eba" * 100_000 + "\u6c11" * 5, "\n" * 200_000, " " * 200_000,
                                  "\u2581" * 9 + "the quick\u2581 brown" * 20_000], ids=lambda text: ascii(text[:3]))
@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma", "no_bytes", "bert"])
def test_a_long_document_is_one_piece(kind, text, tmp_path):
    check(FIXTURES / f"{kind}_tokenizer.json", [text], tmp_path)


def test_a_document_of_bert_ends_with_its_separator_once(tmp_path):
    (tmp_path / "a.txt").write_text("One text.")
    tokenize("--tokenizer", FIXTURES / "bert_tokenizer.json", "--input", tmp_path / "a.txt", "--output", tmp_path / "set")
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "bert_tokenizer.json"))
    ids = tokenizer.encode("One text.").ids
    assert ids[-1] == tokenizer.token_to_id("[SEP]") and read_indexed(tmp_path / "set") == [ids]


def test_end_of_text_ends_each_document(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two<|endoftext|>")
    tokenize("--tokenizer", FIXTURES / "gpt2_tokenizer.json", "--input", tmp_path / "a.txt", tmp_path / "b.txt",
             "--output", tmp_path / "set")
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "gpt2_tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    assert read_indexed(tmp_path / "set") == [tokenizer.encode("one").ids + [end], tokenizer.encode("two").ids + [end]]
