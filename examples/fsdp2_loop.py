#!/usr/bin/env python3
"""A model and a loop of one's own on plain FSDP2, with Trireme's attention operator. As it is, on two CPU ranks:

torchrun --nproc_per_node 2 examples/fsdp2_loop.py

Every rank loads the same packed sample and trains on its shard; the three lines that ask for this have numbers. The
printed loss and gradient norm are those of one process, on any number of ranks.
"""

import torch
import torch.distributed as dist
import trireme
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, TOKENS = 64, 4, 2, 16, 1001


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.o = nn.RMSNorm(WIDTH), nn.Linear(HEADS * HEAD_WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * HEAD_WIDTH)
        self.mlp = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, group, cu_seqlens):  # x [1, s, WIDTH]: this rank's tokens
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (-1, HEAD_WIDTH)).split([HEADS, KEY_HEADS, KEY_HEADS], dim=2)
        x = x + self.o(trireme.ulysses_attention(q, k, v, group, cu_seqlens=cu_seqlens).flatten(2))  # 1
        return x + self.mlp(x)


dist.init_process_group("gloo")
group = dist.group.WORLD  # shares each sample, and the weights
torch.manual_seed(0)
tokens, positions, head = nn.Embedding(256, WIDTH), nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 256)
model = nn.ModuleList([tokens, positions, Layer(), Layer(), head])
for part in model:
    fully_shard(part, mesh=dist.init_device_mesh("cpu", (group.size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

text = torch.tensor(list(open(__file__, "rb").read()))
for step in range(5):
    input_ids = torch.cat([text[37 * step :][:400], text[53 * step :][:601]])[None]  # two documents
    borders = torch.tensor([0, 400, TOKENS])
    position_ids = torch.cat([torch.arange(400), torch.arange(601)])[None]
    labels = input_ids.masked_fill(position_ids == 0, -100)  # nothing foretells a document's first token
    shard = trireme.shard(dict(input_ids=input_ids, position_ids=position_ids, labels=labels), group)  # 2
    x = tokens(shard["input_ids"]) + positions(shard["position_ids"])
    for layer in model[2:4]:
        x = layer(x, group, borders)
    loss = trireme.loss(head(x), shard["shift_labels"], group, averaged_over=group.size())  # 3: FSDP2 averages
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f} gradient norm {norm:.6f}", flush=True)
dist.destroy_process_group()
