"""The cells of one system's column in bench/hugging_face_table: each a small model and batch, beside the model alone.

torchrun --nproc_per_node RANKS hugging_face_cells.py SYSTEM [TEXT]      prints a line of JSON for each of its cells with RANKS
whose row has that text
"""

import importlib
import json
import os
import sys
import warnings

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# The stage at which a system's gradients are right, where there is one: other rows are then about their own subject.
SYSTEMS = {"trireme_shards": 1, "deepspeed_alst": 3, "deepspeed_autosp": 1, "accelerate_context_parallel": None}
SMALL = dict(vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
LLAMA = ("Llama", {})
FIVE_HEADS = ("Llama", dict(num_attention_heads=5, num_key_value_heads=5, hidden_size=40))
SIX_HEADS = ("Llama", dict(num_attention_heads=6, num_key_value_heads=3, hidden_size=48))
TOKENS = 28

# Row: ranks, model, batch, ZeRO stage (None: the system's own), of what kind.
ROWS = {
    "4 query, 2 key/value heads, 2 ranks": (2, LLAMA, "plain", None),
    "5 heads, 2 ranks": (2, FIVE_HEADS, "plain", None),
    "6 query, 3 key/value heads, 2 ranks": (2, SIX_HEADS, "plain", None),
    "4 query, 2 key/value heads, 4 ranks": (4, LLAMA, "plain", None),
    "29 tokens, 2 ranks": (2, LLAMA, "odd length", None),
    "padding (left)": (2, LLAMA, "padding", None),
    "packed documents": (2, LLAMA, "packed", None),
    "sliding window": (2, ("Mistral", dict(sliding_window=6)), "plain", None),
    "a rank without a target": (2, LLAMA, "few targets", None),
    "two samples in a micro-batch": (2, LLAMA, "two samples", None),
    "evaluation": (2, LLAMA, "evaluation", None),
    "gradients, ZeRO-0": (2, LLAMA, "plain", 0),
    "gradients, ZeRO-1": (2, LLAMA, "plain", 1),
    "gradients, ZeRO-2": (2, LLAMA, "plain", 2),
    "gradients, ZeRO-3": (2, LLAMA, "plain", 3),
}


def make_model(family, changes):
    import transformers

    config = getattr(transformers, family + "Config")(**{**SMALL, **changes})
    config._attn_implementation = "sdpa"
    torch.manual_seed(3)
    model = getattr(transformers, family + "ForCausalLM")(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def make_batch(kind):
    samples, tokens = 2 if kind == "two samples" else 1, TOKENS + (kind == "odd length")
    ids = torch.randint(3, 67, (samples, tokens), generator=torch.Generator().manual_seed(4))
    batch = {"input_ids": ids, "labels": ids.clone()}
    batch["labels"][:, 2:5] = -100
    if kind == "packed":
        batch["position_ids"] = torch.cat([torch.arange(9), torch.arange(19)])[None]
        batch["labels"][0, 9] = -100
    if kind == "padding":
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][:, :6] = 0
        batch["labels"][:, :7] = -100  # the first token's target is a padding token's, whose attention differs by kernel
    if kind == "few targets":
        batch["labels"][:, 12:] = -100
    return batch


def alone(model, batch):
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def worst(truth, got):
    """Over gradients, the largest error as a share of the gradient's largest entry."""
    return max(((got[name] - truth[name]).abs().max() / truth[name].abs().max()).item() for name in truth)


def run_cell(system, model, kind, stage):
    batch = make_batch(kind)
    loss, gradients = alone(make_model(*model), batch)
    if kind == "evaluation":
        value = system.evaluate(make_model(*model), batch, stage)
        return {"loss": abs(value - loss) / loss}
    value, theirs = system.train_step(make_model(*model), batch, stage)
    return {"loss": abs(value - loss) / loss, "gradients": worst(gradients, theirs)}


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # only for inference; compiled, and leaves /dev/shm full
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo")
    name, text = sys.argv[1], "".join(sys.argv[2:])
    system = importlib.import_module(name)
    for row, (ranks, model, kind, stage) in ROWS.items():
        if ranks != dist.get_world_size() or text not in row or (SYSTEMS[name] is None and stage is not None):
            continue
        try:
            found = run_cell(system, model, kind, SYSTEMS[name] if stage is None else stage)
        except Exception as error:
            found = {"refused": type(error).__name__ + ": " + " ".join(str(error).split())}
        every = [None] * ranks
        dist.all_gather_object(every, found)
        if dist.get_rank() == 0:
            print(json.dumps({"row": row, "ranks": every}), flush=True)
    os._exit(0)  # an engine that failed may wait for its peers


if __name__ == "__main__":
    main()
