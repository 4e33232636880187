"""Trireme's exact Ulysses attention for PyTorch and Transformers; docs/huggingface.md is its page.

The import brings neither transformers nor torch._dynamo, which take seconds. So what torch.compile is to leave alone is marked by
torch._disable_dynamo, which imports the latter at the first call, and not by torch.compiler.disable.
"""

from . import hf
from .attention import ulysses_attention
from .batch import gather, shard
from .engine import TrainingRun, engine_binary, train
from .errors import ConfigError, DataError, RunFailed
from .fused_loss import fused_loss
from .gradient_sums import sum_gradients
from .linear_cross_entropy import linear_cross_entropy
from .long_context_data_collator import LongContextDataCollator
from .loss import count_targets, loss
from .metrics_file import Evaluation, Step
from .offload import offload_activations
from .parallelize import parallelize
from .planning import plan
from .sequence_group import SequenceGroup
from .tiled_mlp import tile_mlp
from .token_set import SetReport, write_set
from .tokenize_chats import tokenize_chats
from .verify import VerifyResult, verify

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "DataError",
    "Evaluation",
    "LongContextDataCollator",
    "RunFailed",
    "SequenceGroup",
    "SetReport",
    "Step",
    "TrainingRun",
    "VerifyResult",
    "count_targets",
    "engine_binary",
    "fused_loss",
    "gather",
    "hf",
    "linear_cross_entropy",
    "loss",
    "offload_activations",
    "parallelize",
    "plan",
    "shard",
    "sum_gradients",
    "tile_mlp",
    "tokenize_chats",
    "train",
    "ulysses_attention",
    "verify",
    "write_set",
]
