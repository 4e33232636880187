#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, small and of every shape that is taken, into the folder corpus/ beside this file."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def write(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, (dict, list)):
        content = json.dumps(content, ensure_ascii=False)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def safetensors(tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def int64(*values):
    return struct.pack(f"<{len(values)}q", *values)


def reference(batch, tokens, extra=None):
    many = batch * tokens
    tensors = {"input_ids": ("I64", [batch, tokens], int64(*(i % 5 for i in range(many)))),
               "labels": ("I64", [batch, tokens], int64(*(-100 if i % tokens == 0 else i % 5 for i in range(many)))),
               "loss": ("F32", [], struct.pack("<f", 1.5))}
    return safetensors({**tensors, **(extra or {})})


def index_file(sizes, width_code, width, documents):
    pointers, at = [], 0
    for size in sizes:
        pointers.append(at)
        at += size * width
    n = len(sizes)
    idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, width_code, n, len(documents))
    idx += struct.pack(f"<{n}i", *sizes) + int64(*pointers) + int64(*documents)
    return struct.pack("<H", at) + idx


def byte_tokens():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]


def tokenizer(**parts):
    tokens = byte_tokens() + ["it", "12", "\u0120w"]
    end = len(tokens)
    return {"version": "1.0",
            "added_tokens": [{"id": end, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                              "rstrip": True, "normalized": False, "special": True}],
            "normalizer": parts.get("normalizer"),
            "pre_tokenizer": parts.get("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}),
            "post_processor": parts.get("post_processor"),
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                      "ignore_merges": parts.get("ignore_merges", False),
                      "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": parts.get("merges", ["i t", "1 2", "\u0120 w"])}}


def character_bpe(**parts):
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(parts.get("bytes", 256))), "\u2581", *"abintw12", "it", "\u2581w", "12"]
    return {**tokenizer(**parts), "decoder": None, "added_tokens": [],
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["i t", "\u2581 w", "1 2"]}}


def word_piece(**parts):
    tokens = ["[UNK]", "[CLS]", "[SEP]", "it", "##s", "'", "s", "1", "##2", "w", "##o"]
    return {**tokenizer(**parts), "decoder": None, "added_tokens": [],
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                      "vocab": {token: i for i, token in enumerate(tokens)}}}


def main():
    write("safetensors", "three", safetensors({"a": ("F32", [2, 2], bytes(16)), "b": ("BF16", [3], bytes(6)),
                                               "empty": ("I64", [0, 4], b"")}, {"format": "pt"}))
    write("safetensors", "none", safetensors({}))
    write("safetensors", "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 999\n")
    write("index", "two", {"metadata": {"total_size": 4},
                           "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    write("index", "one", {"weight_map": {"a": "model-1.safetensors"}})
    for family in ("llama", "mistral_window", "qwen2_yarn_window", "qwen3", "qwen3_moe", "mixtral_window", "llama_llama3", "qwen3_dynamic_old_form", "bert",
                   "gemma_legacy", "gemma3", "gemma3_old_form", "gemma3_whole", "qwen2_5_vl", "mistral3_ministral3", "qwen2_moe", "qwen3_next", "qwen3_5_moe_whole"):
        write("config", family, (ROOT / "tests/parity/fixtures" / family / "config.json").read_text())
    split = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|\s+(?!\S)|\w+"}, "behavior": "Isolated", "invert": False},
        {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}]}
    around = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                                                 {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [259], "tokens": ["<|endoftext|>"]}}}]}
    write("tokenizer", "plain", tokenizer())
    write("tokenizer", "split", tokenizer(pre_tokenizer=split, post_processor=around, ignore_merges=True,
                                          normalizer={"type": "NFC"}, merges=[["i", "t"], ["1", "2"]]))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    write("tokenizer", "llama", character_bpe(pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, spaces]}))
    write("tokenizer", "metaspace", character_bpe(bytes=100, pre_tokenizer={
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}))
    write("tokenizer", "gemma", character_bpe(normalizer=spaces, pre_tokenizer={
        "type": "Split", "pattern": {"String": "t"}, "behavior": "MergedWithPrevious", "invert": False}))
    write("tokenizer", "bert", word_piece(
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"}, post_processor={"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}))
    write("dataset", "uint16", index_file([3, 0, 5], 8, 2, [0, 1, 2, 3]))
    write("dataset", "int32", index_file([4, 4], 4, 4, [0, 2]))
    write("dataset", "modes", index_file([1], 1, 1, [0, 1]) + b"\0")
    write("dataset", "prompts", index_file([3, 2, 4, 1, 6], 8, 2, [0, 2, 4, 5]) + b"\1\0\1\0\0")
    names = ["config.json", "model.safetensors.index.json", "rank-00000.safetensors", "rank-00001.safetensors",
             "tokenizer.json", "trainer_state.json"]
    write("manifest", "chunks", {"format": 2, "step": 40, "ranks": 2, "chunk_bytes": 10,
                                 "files": {name: {"bytes": 12, "xxh3": ["0123456789abcdef"] * 2} for name in names}})
    loader = {"epoch": 0, "row": 3, "set_tokens": 100, "range_begin": 0, "range_end": 100, "packing": "documents",
              "sequence_tokens": 10, "seed": 42, "shuffle": True}
    write("state", "plain", {"step": 4, "total_steps": 8, "stage": 0, "loader": loader, "tokens_seen": 40,
                             "rng": {"seed": 42}, "ranks": 2, "loss": 2.5, "options": {"learning_rate": 1e-4},
                             "optimizer_steps": 4, "loss_scale": 1024.0, "loss_scale_clean_steps": 3})
    write("jsonl", "lines", '\ufeff{"text": "a\\n"}\n\n{"id": 1, "text": "\\u00e9"}\r\n{"text": ""}')
    write("jsonl", "prompt", '{"prompt": "a", "completion": "\\u00e9"}\n{"completion": "", "prompt": ""}\n')
    write("jsonl", "chat", '{"messages": [{"role": "user", "content": "x"}]}\n')
    write("command_line", "train", "train\n--output_dir\n/tmp/x\n--max-seq-length=16k\n--learning_rate\n5e-5\n--bf16\n--packing\nb\n")
    write("command_line", "tokenize", "tokenize\n--input\na\nb\n--output_dir=c\n--seed\n-3\n--bf16\nfalse\n--help")
    write("command_line", "launch", "launch\n--nproc_per_node\n2\n--nnodes=2\n--node_rank\n1\n--master_addr\nhost\n--master_port\n29500\n"
          "--max_restarts\n3\n--grace_seconds\n2.5\n--\ntrain\n--bf16")
    write("command_line", "set", "set\nnum_hidden_layers=4\nrope_scaling.factor=8\nrope_scaling.rope_type=yarn\nhidden_act=silu")
    write("command_line", "stages", "stages\n1k:60,4k:20:1e-5,16k:8")
    write("command_line", "rope", 'rope\n{"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192, "beta_fast": 32}')
    write("command_line", "kwargs", 'kwargs\n{"min_lr_rate": 0.1, "num_cycles": 2}')
    write("memory_error", "torch", '[rank5]:   File "/a/train.py", line 88, in main\n[rank5]:     loss.backward()\n'
          "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 5 has a total capacity of 79.10 GiB of "
          "which 1.00 GiB is free. Process 12 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has 70.00 GiB "
          "memory in use. Of the allocated memory 60.50 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., "
          "CUDA Graphs), and 5.25 GiB is reserved by PyTorch but unallocated.\n")
    write("memory_error", "torch_1", "File /a/b.py:1474, in E.f(self)\n-> 1474  x = y(\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 "
          "GiB (GPU 0; 79.15 GiB total capacity; 70.00 GiB already allocated; 0 bytes free; 77.50 GiB reserved in total by PyTorch)")
    write("memory_error", "nccl", "\u2502 /mnt/lib/zero/st \u2502\n\u2502 age.py:485 in f \u2502\n\u2502 \u2771 485 \u2502 g() \u2502\n"
          "n1:28:48 [1] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\n")
    write("memory_error", "trireme", "[rank 2] trireme: out of pinned host memory: asked for 1.5 GiB (1610612736 bytes) more for attention; this rank "
          "holds parameters 3.0 GiB, activations 40.0 GiB. What would help: --zero 3\n")
    write("memory_error", "killed", "  rank      : 4 (local_rank: 4)\n  exitcode  : -9 (pid: 3)\n[1.2] Out of memory: Killed process 9 (python) "
          "anon-rss:8192kB\nKilled\n")
    write("memory_error", "host", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 132426121216 bytes. Error code 12\n")
    write("reference", "plain", reference(2, 4))
    write("reference", "positions", reference(1, 4, {"position_ids": ("I64", [1, 4], int64(0, 1, 0, 1))}))
    write("reference", "padding", reference(2, 3, {"attention_mask": ("I64", [2, 3], int64(1, 1, 0, 1, 1, 1))}))


if __name__ == "__main__":
    main()
