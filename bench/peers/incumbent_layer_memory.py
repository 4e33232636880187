"""Bytes that autograd holds at most in one decoder layer's second forward and backward, as the incumbents run it.

    python bench/peers/incumbent_layer_memory.py

The oracle of bench/incumbents/incumbent_layer.cpp: Transformers' LlamaDecoderLayer, torch's reentrant checkpoint, and
DeepSpeed's linear function, TiledMLP and UlyssesSPAttentionHF run here as they are, on the CPU, and every storage is
followed. What needs a GPU is replaced by functions that allocate what its source does: FlashAttention-2 (csrc/flash_attn/
flash_api.cpp, also as PyTorch has it under sdpa) and Liger-Kernel's norm, rotation and SwiGLU (ops/). An all-to-all of eight
ranks is a copy. "sdpa" is Transformers 4.51.3's sdpa_attention_forward, which later ones changed.
"""

import importlib
import math
import types

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

# Ratios of widths as in Llama 3 8B: I = 3.5 M, K D = M / 4. Tokens enough that weights are small beside.
HIDDEN, HEADS, KEY_HEADS, INTERMEDIATE, TOKENS = 256, 32, 8, 896, 16384
HEAD = HIDDEN // HEADS


class LiveBytes(TorchDispatchMode):
    """Follows storages with at least one value a token; weights and their gradients are smaller."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def see(self, tensor):
        storage = tensor.untyped_storage()
        known = self.live.get(storage._cdata)
        if storage.nbytes() >= TOKENS * HEAD * 8 and (known is None or known[0].expired()):
            self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def __torch_dispatch__(self, function, types_, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.see(tensor)
        self.live = {key: seen for key, seen in self.live.items() if not seen[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self.live.values()))
        return result


class FlashAttention2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx, d_output):
        query, key, value, _ = ctx.saved_tensors
        d_query, d_key, d_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
        accumulated = torch.empty(query.shape, dtype=torch.float32)  # dq_accum
        expanded = [torch.empty(query.shape, dtype=query.dtype) for _ in range(2 if key.shape != query.shape else 0)]
        del accumulated, expanded
        return d_query, d_key, d_value


class LigerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x).copy_(x)

    @staticmethod
    def backward(ctx, d_output):
        return d_output, torch.zeros_like(ctx.saved_tensors[1])


class LigerRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key):
        return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key))

    @staticmethod
    def backward(ctx, *gradients):
        return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in gradients)


class LigerSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate).copy_(gate)

    @staticmethod
    def backward(ctx, d_product):
        gate, up = ctx.saved_tensors
        return gate.copy_(d_product), up.copy_(d_product)


def flash(module, query, key, value, attention_mask, **_):
    return FlashAttention2.apply(*(tensor.transpose(1, 2) for tensor in (query, key, value))), None


def sdpa(module, query, key, value, attention_mask, **kwargs):
    from transformers.integrations.sdpa_attention import repeat_kv

    key, value = (repeat_kv(tensor, module.num_key_value_groups) for tensor in (key, value))
    query, key, value = (tensor.contiguous() for tensor in (query, key, value))
    output = FlashAttention2.apply(*(tensor.transpose(1, 2) for tensor in (query, key, value))).transpose(1, 2)
    return output.transpose(1, 2).contiguous(), None


def ulysses(ranks, core):
    from deepspeed.runtime.sequence_parallel import ulysses_sp
    from deepspeed.sequence import layer

    def all_gather(outputs, tensor, group=None):
        for output in outputs:
            output.copy_(tensor)

    for module in (layer.dist, ulysses_sp.dist):
        module.get_world_size, module.get_rank = lambda group=None: ranks, lambda group=None: 0
        module.all_to_all_single = lambda output, tensor, group=None: output.copy_(tensor)
        module.all_gather = all_gather
    attention = ulysses_sp.UlyssesSPAttentionHF(
        attn=core, batch_size=1, attn_head_count=HEADS, attn_head_size=HEAD, kv_head_count=KEY_HEADS,
        num_hidden_layers=1, process_group=types.SimpleNamespace(group_name="eight"), seq_length_is_variable=True,
    )  # fmt: skip
    return lambda module, *tensors, **kwargs: attention(module, *tensors, **kwargs)


def peak_values(ranks, tiled, core=flash, family="Llama"):
    """Peak bytes over those of one bf16 [s, M]."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP
    from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3
    import transformers
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = family.lower()
    model = importlib.reload(importlib.import_module(f"transformers.models.{name}.modeling_{name}"))
    norm_class, mlp_class, layer_class = (getattr(model, family + part) for part in ("RMSNorm", "MLP", "DecoderLayer"))
    config = getattr(transformers, family + "Config")(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_attention_heads=HEADS, head_dim=HEAD,
        num_key_value_heads=KEY_HEADS, num_hidden_layers=1, vocab_size=64)  # fmt: skip
    ALL_ATTENTION_FUNCTIONS.register("incumbent", ulysses(ranks, core) if ranks > 1 else core)
    config._attn_implementation = "incumbent"
    norm_class.forward = lambda self, x: LigerNorm.apply(x, self.weight)
    model.apply_rotary_pos_emb = lambda query, key, *_, **__: LigerRotation.apply(query, key)
    if tiled:
        mlp = mlp_class.forward
        mlp_class.forward = lambda self, x: TiledMLP.apply(
            mlp, self, x, math.ceil(x.shape[-2] / HIDDEN),
            [self.down_proj.weight, self.gate_proj.weight, self.up_proj.weight])  # fmt: skip
    else:
        mlp_class.forward = lambda self, x: self.down_proj(LigerSwiGLU.apply(self.gate_proj(x), self.up_proj(x)))
    torch.nn.functional.linear = lambda x, weight, bias=None: LinearFunctionForZeroStage3.apply(x, weight, bias)

    layer = layer_class(config, 0).to(torch.bfloat16).train()
    for parameter in layer.parameters():  # DeepSpeed takes each gradient as it comes
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    tables = tuple(torch.zeros(1, TOKENS, HEAD, dtype=torch.bfloat16) for _ in range(2))
    positions = torch.arange(TOKENS)[None]
    x = torch.zeros(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    y = checkpoint(
        lambda x: layer_class.forward(layer, x, position_ids=positions, position_embeddings=tables),
        x, use_reentrant=True)  # fmt: skip
    d_y = torch.zeros_like(y)
    with LiveBytes() as live:
        live.see(x)
        live.see(d_y)
        torch.autograd.backward([y], [d_y])
    return live.peak / (2 * TOKENS * HIDDEN)


def main():
    print("| layer | ranks | MLP | attention | held at most, in [s, M] of bf16 |\n|---|---|---|---|---|")
    cases = [(False, flash, "Llama"), (True, flash, "Llama"), (True, sdpa, "Llama"), (True, flash, "Qwen3")]
    for ranks in (1, 8):
        for tiled, core, family in cases:
            print(f"| {family} | {ranks} | {'TiledMLP' if tiled else 'SwiGLU of Liger'} | {core.__name__} |"
                  f" {peak_values(ranks, tiled, core, family):.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
