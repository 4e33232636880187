"""Samples of different lengths as one batch whose length `degree` ranks can share evenly.

Where collators of long contexts go wrong, and what this one does:
  padding by value   A pad token is often the end-of-text token. What is padding is told by position, so a real
                     end-of-text token keeps its target.
  padding as target  Padding has the label -100 and attention mask 0.
  truncation         A sample that is too long is an error, not a shorter sample.
  shift after cut    The target of a shard's last token is the next shard's first: `share` cuts targets that are
                     shifted already (`shift_labels`), and the model must not shift them again.
"""

from dataclasses import dataclass

import torch

IGNORED = -100  # the label of what is no target


@dataclass
class LongContextDataCollator:
    pad_token_id: int
    max_length: int  # tokens
    degree: int = 1  # ranks that share a sample

    def __post_init__(self):
        if self.degree < 1 or self.max_length % self.degree:
            raise ValueError(f"max_length {self.max_length} is no multiple of the degree {self.degree}")

    def __call__(self, features):
        """Dictionaries with input_ids, and labels where they are not the input_ids -> tensors [B, S]."""
        longest = max(len(feature["input_ids"]) for feature in features)
        if longest > self.max_length:
            raise ValueError(f"a sample has {longest} tokens, more than max_length {self.max_length}: cut it into several")
        length = -(-longest // self.degree) * self.degree
        batch = {
            "input_ids": torch.full((len(features), length), self.pad_token_id),
            "attention_mask": torch.zeros(len(features), length, dtype=torch.long),
            "position_ids": torch.arange(length).repeat(len(features), 1),
            "labels": torch.full((len(features), length), IGNORED),
        }
        for row, feature in enumerate(features):
            tokens = len(feature["input_ids"])
            batch["input_ids"][row, :tokens] = torch.as_tensor(feature["input_ids"])
            batch["attention_mask"][row, :tokens] = 1
            batch["labels"][row, :tokens] = torch.as_tensor(feature.get("labels", feature["input_ids"]))
        return batch

    def share(self, batch, rank):
        """What rank `rank` of `degree` holds of a batch. Sum the losses of all ranks and divide by their targets
        together: the mean of the ranks' means is another number."""
        shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
        whole = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], "shift_labels": shifted}
        return {name: tensor.chunk(self.degree, dim=1)[rank] for name, tensor in whole.items()}
