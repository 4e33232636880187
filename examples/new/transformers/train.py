"""Trains a model of the Hugging Face hub in one process: the numbers to compare a run over many ranks with.

Reads train.yaml and ds_config.json, the files that `trireme train` reads. A Trainer takes the same collator:
Trainer(..., data_collator=LongContextDataCollator(...)).
"""

import argparse
import contextlib
import json
import random
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler

from data.long_context_collator import IGNORED, LongContextDataCollator


def read_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="train.yaml")
    parser.add_argument("--deepspeed", default="ds_config.json")
    parser.add_argument("--max_steps", type=int)
    parser.add_argument("--output_dir")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    options = yaml.safe_load(Path(given["config"]).read_text()) | given
    return options, json.loads(Path(given["deepspeed"]).read_text())


def samples_of(path, tokenizer, most_tokens):
    """Each document in pieces of at most `most_tokens`, which is what the model is trained on."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    samples = []
    for file in files:
        ids = tokenizer(file.read_text()).input_ids + [tokenizer.eos_token_id]
        samples += [{"input_ids": ids[begin : begin + most_tokens]} for begin in range(0, len(ids), most_tokens)]
    return [sample for sample in samples if len(sample["input_ids"]) > 1]  # one token alone has no target


def main():
    options, ds = read_options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(options["model_name_or_path"])
    model = AutoModelForCausalLM.from_pretrained(options["model_name_or_path"], dtype=torch.float32).to(device).train()
    samples = samples_of(Path(options["train_file"]), tokenizer, options["max_seq_length"])
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    collate = LongContextDataCollator(pad, options["max_seq_length"], options["sp"])

    steps, micro, accumulation = options["max_steps"], ds["train_micro_batch_size_per_gpu"], ds["gradient_accumulation_steps"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"], weight_decay=0.0)
    schedule = get_scheduler(options["lr_scheduler_type"], optimizer, round(options["warmup_ratio"] * steps), steps)
    half = torch.autocast(device.type, torch.bfloat16) if ds["bf16"]["enabled"] else contextlib.nullcontext()
    order = random.Random(42)
    for step in range(1, steps + 1):
        batches = [collate(order.choices(samples, k=micro)) for _ in range(accumulation)]
        # One mean over the targets of the whole step; a label at position 0 is no one's target.
        targets = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)
        loss = 0.0
        for batch in batches:
            with half:
                part = model(**{name: tensor.to(device) for name, tensor in batch.items()}, num_items_in_batch=targets).loss
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ds["gradient_clipping"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {step} of {steps}  loss {loss:.4f}", flush=True)
    model.save_pretrained(options["output_dir"])
    tokenizer.save_pretrained(options["output_dir"])


if __name__ == "__main__":
    main()
