#!/usr/bin/env python3
"""Makes tests/tokenizer/fixtures/: small tokenizers, each with the ids that the Hugging Face `tokenizers` library gives.
Byte-level BPE of the GPT-2, Llama-3, Qwen and Falcon kinds, and one with every flag of added tokens.
SentencePiece's BPE of the Llama-2, Mistral and Gemma kinds, and one without bytes; WordPiece of both kinds of BERT.

    .deps/python/bin/python tests/tokenizer/make_tokenizer_fixtures.py [NAME...]
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

SENTENCES = """All human beings are born free and equal in dignity and rights.
人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
Все люди рождаются свободными и равными в своём достоинстве и правах.
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ
Tous les êtres humains naissent libres et égaux en dignité et en droits. L'été à Noël.
""".splitlines(keepends=True)

CASES = SENTENCES + [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "  a  b   c    ", "\n\n\na\n \n b\r\n\r\nc\r", "\t\tif (x)\t{\n\t}\n",
    "It's we'll I'M YOU'RE they'd we've don'T 'S'", "l'été", "’s ’ll",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 ٣٤٥ १२३ ⅷ ² ½ 一二三 1️⃣",
    "int main() { return a->b[i] += 0x7fULL; } // done\n#include <vector>\n  for (auto& x : xs) x *= 2.0e-3f;\n",
    "def f(x):\n    return {'a': [1, 2], \"b\": None}  # comment\n\n\nclass A:\n\tpass\n",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\path\\file.txt",
    "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇫🇷🇩🇪 😀😀😀 ❤️ ☺", "e\u0301 é E\u0301cole n\u0303 ñ o\u0308\u0304 \u1e9b\u0323 \u212b \u2126 \ufb01 \uac01 \u1100\u1161\u11a8",
    "क्षत्रिय हिन्दी में कि़ ड़ \u0958 \u0915\u093c", "བོད་སྐད།", "ქართული ენა", "Հայերեն", "አማርኛ", "ᚠᛇᚻ᛫ᛒᛦᚦ", "𝒳𝓎𝔷 𝟘𝟙𝟚 𐍈 🜁 𠀀𠮷",
    "a\u0300\u0301\u0302\u0316 \u0344 \u0374 \u037e \u0340\u0341", "\u200b\u200c\u200d\u2060\ufeffa\u00adb", "\u00a0a\u2003b\u3000c\u2028d\u2029e\u0085f\u1680g\u180eh",
    "\u0000\u0001\u001f\u007f\u0080\u009f", "\ufffd \uffff \U0010ffff \ue000", "ﷺ ﷽ ｆｕｌｌｗｉｄｔｈ １２３", "ΑΣ ας ǅ ŉ ß ẞ İ ı ſ K",
    "a" * 200, "ab" * 150, " " * 100 + "x", "\n" * 70 + "y", "=" * 90, "the " * 40, "人" * 60, "ha" * 23 + "h", "!?" * 47,
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext", "<|endoftext|", "<<|endoftext|>>",
    "<|begin_of_text|>hello<|end_of_text|>", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<tool> x </tool> <tool>y</tool>", "x  <left>y", "x <right>  y", "x\n\t<both>\u3000\n y", "<left><right>  <both>", "<right>   <left>",
    "wordy word words sword word.word word_word 3word wordé éword word\u0301 \u0301word (word) word\u200d ⓐword word",
    "<s>x</s> <unk> [INST] a [/INST]b [CLS] [MASK] [SEP] [UNK]", "<0x0A> <0xE4>", "\u2581a \u2581 b\u2581\u2581", "word  two  spaces word",
    "ÀÉÎÕÜ Straße İstanbul ΜΆΪΟΣ Ёлка ǈ Ⴀ Ꭰ 𐐀 \ua7cb", "don't-stop… «q» 1+1=2 a_b ~^`|<> $5 €6 ₹7 ¿no? 「日本」、 ؟ ।",
    "a\u0000b\u0007c\ufffdd\u00ade\u200bf\ue000g\U000e0001h\u2028i", "漢字kanji㐀𠀀𫜴豈 ひらがな ハングル", "=1=2==3 4= x5y6",
    "Cafe\u0301 Café café caf\u00e9s", "aa aaa aaaa aaaaa", "  two  spaces   three    four",
]


def training_text():
    yield from SENTENCES * 8
    for file in ["trireme/base/error.h", "trireme/base/sizes.h", "trireme/data/token_batch.h", "CMakeLists.txt"]:
        yield (ROOT / file).read_text()


def train(tokenizer, vocab_size, special=()):
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 700)
    t.add_special_tokens(["<|endoftext|>"])
    j = json.loads(t.to_str())
    # The oldest form, as GPT-2's own file has it.
    j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    for key in ("type", "byte_fallback", "ignore_merges"):
        del j["model"][key]
    del j["pre_tokenizer"]["use_regex"]
    j["model"]["continuing_subword_prefix"] = j["model"]["end_of_word_suffix"] = ""
    return j


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, 900)
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>"])
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    j = json.loads(t.to_str())
    # Tokens that merges no longer reach: only ignore_merges finds them.
    j["model"]["merges"] = [m for i, m in enumerate(j["model"]["merges"]) if i % 7 != 3]
    return j


def qwen():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 800)
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken(x, normalized=False) for x in ("<tool>", "</tool>")])
    return json.loads(t.to_str())


def falcon():
    """As the files of Falcon and Falcon3, where steps behind ByteLevel see its alphabet, in which some bytes are digits."""
    t = Tokenizer(models.BPE())
    byte_level = t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    train(t, 700)  # with merges across what the other steps cut
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level, pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    t.add_special_tokens(["<|endoftext|>"])
    return json.loads(t.to_str())


def flags():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.NFC()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.Split("o", "removed"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=True)])
    t.decoder = decoders.ByteLevel()
    train(t, 500, special=["<|endoftext|>"])
    end = t.token_to_id("<|endoftext|>")
    t.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A:0 <|endoftext|>:0",
                                                     special_tokens=[("<|endoftext|>", end)])
    t.add_special_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True),
                          AddedToken("<both>", lstrip=True, rstrip=True, normalized=True)])
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("Cafe\u0301"), AddedToken("café", normalized=False),
                  AddedToken("aa"), AddedToken("aaa"), AddedToken("  ", normalized=False), AddedToken("é")])
    return json.loads(t.to_str())


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece(vocab_size, split, special=("<unk>", "<s>", "</s>"), **model):
    """BPE over characters, of which the rare ones become bytes; `split`: no merge crosses a space."""
    t = Tokenizer(models.BPE(unk_token="<unk>", **model))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    if split:
        t.pre_tokenizer = pre_tokenizers.Metaspace()
    stand_ins = BYTE_TOKENS if model.get("byte_fallback") else []
    t.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=vocab_size, limit_alphabet=130, show_progress=False, special_tokens=[*special, *stand_ins]))
    j = json.loads(t.to_str())
    j["added_tokens"] = [token for token in j["added_tokens"] if token["content"] in special]
    j["normalizer"] = j["pre_tokenizer"] = None
    j["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return j


def around(before, after, ids):
    """The post-processor that puts one token before a text and one after it, if given."""
    items = [{"SpecialToken": {"id": before, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    if after:
        items.append({"SpecialToken": {"id": after, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": items, "pair": items + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (before, after) if name}}


def llama2():
    """As Llama-2's, TinyLlama's and Mistral-7B-v0.1's file."""
    j = sentencepiece(700, split=True, fuse_unk=True, byte_fallback=True)
    j["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    j["post_processor"] = around("<s>", None, j["model"]["vocab"])
    # The oldest form, without this field.
    del j["model"]["ignore_merges"]
    return j


def mistral():
    """As Mistral-7B-v0.3's file; merges cross spaces."""
    j = sentencepiece(800, split=False, special=("<unk>", "<s>", "</s>", "[INST]", "[/INST]"), fuse_unk=True, byte_fallback=True)
    j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    j["post_processor"] = around("<s>", "</s>", j["model"]["vocab"])
    return j


def gemma():
    """As Gemma's file: no space is put before a text, and runs of spaces and newlines are added tokens."""
    j = sentencepiece(700, split=True, special=("<pad>", "<eos>", "<bos>", "<unk>"), fuse_unk=True, byte_fallback=True)
    j["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    j["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    t = Tokenizer.from_str(json.dumps(j))
    t.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)] +
                 [AddedToken("\u2581" * n, normalized=False) for n in range(2, 6)])
    j = json.loads(t.to_str())
    j["post_processor"] = around("<bos>", None, j["model"]["vocab"])
    return j


def no_bytes():
    """Unknown characters, pieces that are tokens, added tokens that are searched in normalized text; some bytes only."""
    j = sentencepiece(600, split=True, special=("<unk>", "<s>", "<|endoftext|>"), fuse_unk=False, ignore_merges=True)
    j["model"]["byte_fallback"] = True
    for token in ("<0xC3>", "<0xBC>", "<0xE2>"):
        j["model"]["vocab"][token] = len(j["model"]["vocab"])
    j["model"]["merges"] = [m for i, m in enumerate(j["model"]["merges"]) if i % 7 != 3]
    j["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\p{N}|="}, "behavior": "MergedWithPrevious", "invert": False},
        {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}]}
    t = Tokenizer.from_str(json.dumps(j))
    t.add_special_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True),
                          AddedToken("<both>", lstrip=True, rstrip=True, normalized=True)])
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("Cafe\u0301"), AddedToken("aa"), AddedToken("two  spaces")])
    return json.loads(t.to_str())


def wordpiece(normalizer, vocab_size, **model):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", **model))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(training_text(), trainers.WordPieceTrainer(
        vocab_size=vocab_size, limit_alphabet=150, show_progress=False, special_tokens=special))
    return json.loads(t.to_str())


def bert():
    """As bert-base-uncased's file, which names no type of its model."""
    j = wordpiece(normalizers.BertNormalizer(), 900)
    del j["model"]["type"]
    j["post_processor"] = around("[CLS]", "[SEP]", j["model"]["vocab"])
    return j


def bert_cased():
    """Case and accents are kept, words are short, and the post-processor has the older form."""
    j = wordpiece(normalizers.BertNormalizer(lowercase=False), 700, max_input_chars_per_word=12)
    t = Tokenizer.from_str(json.dumps(j))
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("<tool>", normalized=False), AddedToken("Cafe\u0301")])
    j = json.loads(t.to_str())
    j["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", j["model"]["vocab"]["[SEP]"]],
                           "cls": ["[CLS]", j["model"]["vocab"]["[CLS]"]]}
    return j


def main():
    out = HERE / "fixtures"
    out.mkdir(exist_ok=True)
    for make in (gpt2, llama3, qwen, falcon, flags, llama2, mistral, gemma, no_bytes, bert, bert_cased):
        if sys.argv[1:] and make.__name__ not in sys.argv[1:]:
            continue
        text = json.dumps(make(), ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_str(text)
        (out / f"{make.__name__}_tokenizer.json").write_text(text + "\n")
        cases = [{"text": case, "ids": tokenizer.encode(case).ids} for case in CASES]
        (out / f"{make.__name__}_cases.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
