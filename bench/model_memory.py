#!/usr/bin/env python3
"""Memory of one training step with each of trireme's memory helpers, as a Markdown table: a Llama of transformers with the
proportions of the 8B and a 32nd of its widths.

    PYTHONPATH=python TRIREME_OPERATORS=build/cpu/lib/libtrireme_operators.so python bench/model_memory.py [--tokens 4096]

Counts the bytes of tensors that operators make, beside parameters and gradients of parameters; no allocator is asked, so the
figures are the same on every machine. Layers are checkpointed in every row. Offloaded tensors are counted no more.
"""
import argparse
import contextlib
import pathlib
import sys
import tempfile

import torch
import transformers
import trireme

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tensor_bytes import TensorBytes  # noqa: E402

MiB = 1 << 20


def to_disk(folder):
    files = iter(range(1 << 30))

    def store(tensor):
        path, size, dtype = folder / str(next(files)), tensor.shape, tensor.dtype
        tensor.view(torch.uint8).numpy().tofile(path)
        return lambda: torch.frombuffer(bytearray(path.read_bytes()), dtype=dtype).view(size)

    return store


def rows(model, folder, tile):
    fused = lambda: trireme.fused_loss(model, tokens_per_tile=tile)  # noqa: E731
    tiled = lambda: trireme.tile_mlp(model, tokens_per_tile=tile)  # noqa: E731
    offload = lambda: trireme.offload_activations(model, store=to_disk(folder))  # noqa: E731
    yield "checkpointed layers", ()
    yield "`fused_loss`", (fused,)
    yield "`fused_loss`, `tile_mlp`", (fused, tiled)
    yield "`fused_loss`, `tile_mlp`, `offload_activations`", (fused, tiled, offload)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--tile", type=int, default=256, help="tokens")
    a = parser.parse_args()
    config = transformers.LlamaConfig(
        vocab_size=4008, hidden_size=128, intermediate_size=448, num_hidden_layers=32, num_attention_heads=8, num_key_value_heads=2,
        max_position_embeddings=a.tokens, tie_word_embeddings=False, attn_implementation="sdpa")  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(config.vocab_size, (1, a.tokens))
    print(f"{a.tokens} tokens, bf16, tiles of {a.tile} tokens:\n")
    print("| | loss | most MiB at once | largest tensor, MiB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, helpers in rows(model, pathlib.Path(folder), a.tile):
            with contextlib.ExitStack() as block:
                for helper in helpers:
                    block.enter_context(helper())
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                with TensorBytes() as made:
                    loss = model(input_ids=ids, labels=ids).loss
                    loss.backward()
            print(f"| {name} | {loss:.5f} | {made.most_alive / MiB:.0f} | {made.largest / MiB:.1f} |", flush=True)


if __name__ == "__main__":
    main()
