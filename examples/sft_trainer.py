#!/usr/bin/env python3
"""TRL's SFTTrainer in which all ranks share every sample, packed. As it is, on two CPU ranks:

torchrun --nproc_per_node 2 examples/sft_trainer.py

One line differs from a script without Trireme; it is marked. The printed losses are those of one process, on any number of ranks.
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trireme.hf import with_sequence_parallel
from trl import SFTConfig, SFTTrainer


def make_tokenizer():
    """One token a character: enough for an example without a download."""
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<eos>", "<unk>", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1024, help="of a packed sample")
    options = parser.parse_args()

    torch.manual_seed(0)
    size = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    model = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1))
    source = open(__file__).read()
    texts = [source[begin : begin + 700] for begin in range(0, len(source) - 700, 25)]
    arguments = SFTConfig(
        tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=1,  # samples of all ranks that share them
        max_length=options.tokens,
        packing=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = with_sequence_parallel(SFTTrainer)(  # SFTTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict({"text": texts}), processing_class=make_tokenizer()
    )
    trainer.train()


if __name__ == "__main__":
    main()
