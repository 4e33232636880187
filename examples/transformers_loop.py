#!/usr/bin/env python3
"""A plain training loop with Transformers in which all ranks share every sample. As it is, on two CPU ranks:

torchrun --nproc_per_node 2 examples/transformers_loop.py

The two lines that Trireme asks of a script are marked; every rank loads the same samples. The printed loss is that of one process, on any number of ranks.
"""

import argparse

import torch
import torch.distributed as dist
import trireme
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1000, help="of a sample; any number")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    group = dist.group.WORLD  # the ranks that share a sample
    torch.manual_seed(0)
    size = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    model = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=2)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    text = torch.tensor(list(open(__file__, "rb").read())).repeat(1 + options.tokens * 11 // 2000)
    with trireme.parallelize(model, group, whole_batches=True):  # 1
        for step in range(options.steps):
            begin = step * 37 % 1000
            input_ids = text[None, begin : begin + options.tokens]  # every rank has the whole sample
            loss = model(input_ids=input_ids, labels=input_ids).loss
            loss.backward()
            trireme.sum_gradients(model.parameters(), group)  # 2
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.6f} gradient norm {norm:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
