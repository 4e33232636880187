"""Compiles FlashAttention-4's kernels for Hopper (flash-attn-4 of PyPI, with NVIDIA's CUTLASS DSL) into object files that C++ links.
No GPU is needed.

    export_kernels.py OUT WIDTH GROUP TILE_Q_CAUSAL TILE_Q_FULL TILE_K

writes, for heads of WIDTH in bf16 and GROUP query heads a key/value head, OUT/trireme_flash4_w<WIDTH>_g<GROUP>_<pass>_<mask>.o,
pass forward or backward, mask causal or full. Each has one function of that name in the calling convention of TVM FFI, whose
arguments trireme/kernels/flash4_runner.cpp passes. The tiles are those by which trireme/kernels/flash4_sizes.h sizes backward's
sums; the script fails where flash-attn-4 has others.
"""
import os
import sys
import types

import torch
import torch._dynamo  # before the next line, which it would take for Triton

# quack, which flash-attn-4 imports, asks for Triton's names where it tunes kernels; nothing is tuned here.
sys.modules["triton"] = types.ModuleType("triton")
sys.modules["triton"].runtime = types.SimpleNamespace(cache=types.SimpleNamespace(FileCacheManager=object))
sys.modules["triton"].Config = object

import cuda.bindings.driver as cuda
import cutlass
from cutlass import BFloat16, Float32, cute
from cutlass._mlir import ir
from cutlass.cutlass_dsl import tvm_ffi_provider
from flash_attn.cute.flash_bwd_postprocess import FlashAttentionBackwardPostprocess
from flash_attn.cute.flash_bwd_preprocess import FlashAttentionBackwardPreprocess
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90
from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
from flash_attn.cute.interface import AuxData, _tile_size_bwd_sm90, _tile_size_fwd_sm90
from quack.compile_utils import make_fake_tensor

HOPPER = 90


def for_any_x86_64(get_export_module):
    """The host's code is made for the processor that builds it, unless its functions name another."""
    def get(*arguments, **named):
        module = get_export_module(*arguments, **named)

        def name_processor(operation):
            if operation.name == "llvm.func":
                operation.attributes["target_cpu"] = ir.StringAttr.get("x86-64", module.context)
                operation.attributes["target_features"] = ir.Attribute.parse('#llvm.target_features<["+sse2"]>', module.context)
            return ir.WalkResult.ADVANCE
        module.operation.walk(name_processor)
        return module
    return get


tvm_ffi_provider.get_export_module = for_any_x86_64(tvm_ffi_provider.get_export_module)


def tensor(dtype, *shape):
    """Any sizes and strides, the last contiguous, all else aligned to 16 bytes."""
    return make_fake_tensor(dtype, shape, divisibility=128 // dtype.width)


def argument_tensors(group):
    """Of B samples, S rows, T keys, h query and k key/value heads; rows of sums are those of tiles."""
    size = cute.sym_int
    b, s, t, h, d = size(), size(), size(), size(), size()
    k = h if group == 1 else size()
    q_rows, q_sums, k_sums = size(), size(), size()
    queries, keys = [lambda heads=heads, rows=rows: tensor(BFloat16, b, rows, heads, d) for heads, rows in ((h, s), (k, t))]
    return {
        "q": queries(), "k": keys(), "v": keys(), "o": queries(), "d_o": queries(), "lse": make_fake_tensor(Float32, (b, h, s)),
        "dq": queries(), "dk": keys(), "dv": keys(),
        "dq_sum": tensor(Float32, b, h, q_sums), "dk_sum": tensor(Float32, b, k, k_sums), "dv_sum": tensor(Float32, b, k, k_sums),
        "delta": tensor(Float32, b, h, q_rows), "lse_log2": tensor(Float32, b, h, q_rows),
    }


class Forward:
    ARGUMENTS = ("q", "k", "v", "o", "lse")

    def __init__(self, width, group, causal):
        tile = _tile_size_fwd_sm90(width, width, causal, False)
        self.kernel = FlashAttentionForwardSm90(
            BFloat16, width, width, group, is_causal=causal, is_local=False, pack_gqa=group > 1, tile_m=tile.m_block_size,
            tile_n=tile.n_block_size, num_stages=2, num_threads=384, Q_in_regs=False, intra_wg_overlap=tile.intra_wg_overlap,
            mma_pv_is_rs=tile.mma_pv_is_rs, mask_mod=None, score_mod=None, has_aux_tensors=False, q_subtile_factor=None,
            paged_kv_non_tma=False)

    @cute.jit
    def __call__(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor, lse: cute.Tensor, scale: Float32,
                 stream: cuda.CUstream):
        self.kernel(q, k, v, o, lse, scale, None, None, None, None, None, None, None, None, None, AuxData(), None, None, stream)


class Backward:
    """delta = rowsum(d(o) o) and the log-sum-exp in bits, then the pass over tiles of keys, then the sums in bf16."""
    ARGUMENTS = ("d_o", "q", "k", "v", "o", "lse", "dq", "dk", "dv", "dq_sum", "dk_sum", "dv_sum", "delta", "lse_log2")

    def __init__(self, width, group, causal):
        tile = _tile_size_bwd_sm90(width, width, causal, False)
        threads = tile.num_wg * 128
        multiple = 64 if tile.dKV_swapAB else 32
        self.tiles = (tile.m_block_size, tile.n_block_size)
        self.group = group
        self.before = FlashAttentionBackwardPreprocess(
            BFloat16, width, width, tile.m_block_size, use_padded_offsets=True, nheads_major=False, pack_gqa=False,
            qhead_per_kvhead=1, nheads_kv=1, hdim_multiple_of=multiple)
        self.kernel = FlashAttentionBackwardSm90(
            BFloat16, width, width, group, causal, is_local=False, deterministic=False, tile_m=tile.m_block_size,
            tile_n=tile.n_block_size, Q_stage=tile.num_stages_Q, dO_stage=tile.num_stages_dO, PdS_stage=tile.num_stages_PdS,
            SdP_swapAB=tile.SdP_swapAB, dKV_swapAB=tile.dKV_swapAB, dQ_swapAB=tile.dQ_swapAB, AtomLayoutMSdP=tile.AtomLayoutMSdP,
            AtomLayoutNdKV=tile.AtomLayoutNdKV, AtomLayoutMdQ=tile.AtomLayoutMdQ, num_threads=threads + 128, V_in_regs=False,
            score_mod=None, score_mod_bwd=None, mask_mod=None, has_aux_tensors=False, q_subtile_factor=2,
            dQ_single_wg=tile.dQ_single_wg)

        def after(rows, its_threads, atom_layout, swap):
            return FlashAttentionBackwardPostprocess(
                BFloat16, width, HOPPER, rows, its_threads, atom_layout, swap, use_2cta_instrs=False, cluster_size=1,
                hdim_multiple_of=multiple, accum_order=None)
        self.after_q = after(tile.m_block_size, 128 if tile.dQ_single_wg else threads, tile.AtomLayoutMdQ, tile.dQ_swapAB)
        self.after_kv = after(tile.n_block_size, threads, tile.AtomLayoutNdKV, tile.dKV_swapAB)

    @cute.jit
    def __call__(self, d_o: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor, lse: cute.Tensor,
                 dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, dq_sum: cute.Tensor, dk_sum: cute.Tensor, dv_sum: cute.Tensor,
                 delta: cute.Tensor, lse_log2: cute.Tensor, scale: Float32, stream: cuda.CUstream):
        self.before(o, d_o, delta, lse, lse_log2, dq_sum, None, None, None, None, None, scale, None, None, stream)
        if cutlass.const_expr(self.group > 1):
            self.kernel(q, k, v, d_o, lse_log2, delta, dq_sum, dk_sum, dv_sum, scale, None, None, None, None, None, None, None, None,
                        None, AuxData(), None, None, stream)
        else:
            self.kernel(q, k, v, d_o, lse_log2, delta, dq_sum, dk, dv, scale, None, None, None, None, None, None, None, None, None,
                        AuxData(), None, None, stream)
        self.after_q(dq_sum, dq, scale, None, None, None, None, stream)
        if cutlass.const_expr(self.group > 1):
            self.after_kv(dk_sum, dk, scale, None, None, None, None, stream)
            self.after_kv(dv_sum, dv, Float32(1.0), None, None, None, None, stream)


def export(function, name, folder, group):
    tensors = argument_tensors(group)
    compiled = cute.compile(function, *(tensors[argument] for argument in function.ARGUMENTS), Float32(1.0),
                            cute.runtime.make_fake_stream(), options="--enable-tvm-ffi")
    compiled.export_to_c(object_file_path=os.path.join(folder, name + ".o"), function_name=name)


def main(folder, width, group, tile_q_causal, tile_q_full, tile_k):
    os.makedirs(folder, exist_ok=True)
    for mask, tile_q in (("causal", tile_q_causal), ("full", tile_q_full)):
        backward = Backward(width, group, mask == "causal")
        if backward.tiles != (tile_q, tile_k):
            sys.exit(f"flash-attn-4 cuts backward of heads {width} wide, {mask}, into tiles of {backward.tiles}, flash4_sizes.h has {(tile_q, tile_k)}")
        name = f"trireme_flash4_w{width}_g{group}"
        export(Forward(width, group, mask == "causal"), f"{name}_forward_{mask}", folder, group)
        export(backward, f"{name}_backward_{mask}", folder, group)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
