"""What an attention_mask says of each token: 1 a token, 0 padding. Nothing else is read from one.

Some collators number packed documents there (1, 1, 2, 2, 2, 0). As a mask of ones that would let the documents see each other.
"""

from __future__ import annotations

import torch

from .errors import ConfigError


def valid_tokens(mask: torch.Tensor, caller: str) -> torch.Tensor:
    """Where the mask is 1, as bool on the CPU."""
    values = mask.cpu()
    valid = values != 0
    if bool((valid & (values != 1)).any()):
        raise ConfigError(
            f"{caller}: got an attention_mask with values from {values.min().item()} to {values.max().item()}, expected 1 for a token and 0 for "
            "padding. If they number packed documents (LlamaFactory's neat_packing): leave the attention_mask out, and give position_ids that restart "
            "at 0 with each document"
        )
    return valid
