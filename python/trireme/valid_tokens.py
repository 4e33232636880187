"""What an attention_mask says of each token: 1 a token, 0 padding. Nothing else is read from one.

Some collators number packed documents there (1, 1, 2, 2, 2, 0). As a mask of ones that would let the documents see each other.
"""

from __future__ import annotations

import torch

from .errors import ConfigError


def valid_tokens(mask: torch.Tensor, caller: str) -> torch.Tensor:
    """Where the mask is 1, as bool on the CPU, to which it goes in one copy of a byte for each token."""
    valid = mask != 0
    wrong = (valid & (mask != 1)).any()
    copied = torch.cat([valid.flatten(), wrong.reshape(1)]).cpu()
    if copied[-1]:
        least, most = mask.min().item(), mask.max().item()
        if most <= 0:
            advice = "It looks like one that is added to scores, 0 for a token and -inf for padding: give (attention_mask == 0).long()"
        else:
            advice = (
                "If they number packed documents (LlamaFactory's neat_packing): leave the attention_mask out, and give position_ids that restart "
                "at 0 with each document"
            )
        raise ConfigError(
            f"{caller}: got an attention_mask with values from {least} to {most}, expected 1 for a token and 0 for padding. {advice}"
        )
    return copied[:-1].view(mask.shape)
