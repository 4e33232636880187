"""What the operators of attention (python/operators/attention_operators.cpp) are called with behind their tensors, forward and backward alike."""

from typing import NamedTuple

import torch


class AttentionArguments(NamedTuple):
    group: str  # under which torch.distributed registered it; "": this rank alone
    ring: int
    lengths: list[int]
    cu_seqlens: list[torch.Tensor]
    window: int  # 0: none
    causal: bool
    scale: float
    softcap: float  # 0: none
