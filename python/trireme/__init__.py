"""Trireme's exact Ulysses attention for PyTorch and Transformers; docs/huggingface.md is its page."""

from . import hf
from .attention import ulysses_attention
from .batch import gather, shard
from .errors import ConfigError
from .fused_loss import fused_loss
from .linear_cross_entropy import linear_cross_entropy
from .long_context_data_collator import LongContextDataCollator
from .loss import count_targets, loss, sum_gradients
from .offload import offload_activations
from .parallelize import parallelize
from .sequence_group import SequenceGroup
from .tiled_mlp import tile_mlp

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "LongContextDataCollator",
    "SequenceGroup",
    "count_targets",
    "fused_loss",
    "gather",
    "hf",
    "linear_cross_entropy",
    "loss",
    "offload_activations",
    "parallelize",
    "shard",
    "sum_gradients",
    "tile_mlp",
    "ulysses_attention",
]
