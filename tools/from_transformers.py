#!/usr/bin/env python3
"""Turns a Transformers Trainer's checkpoint-N, with its AdamW's state, into a checkpoint that Trireme goes on from.

    tools/from_transformers.py output/checkpoint-500 --out /runs/mine
    trireme train --output_dir /runs/mine --resume_from_checkpoint true ...

Reads config.json, the weights (model.safetensors, or shards with their index), optimizer.pt and trainer_state.json, on the
CPU and tensor by tensor; writes /runs/mine/checkpoints/step-500. Step and moments are the Trainer's, so that the learning
rate goes on where it was; the data begins at its beginning. What optimizer.pt tells (learning rate, betas, epsilon, weight
decay) is compared with the options of the run that goes on.

Needs torch, transformers, safetensors, and libxxhash (Debian: libxxhash0) or Python's xxhash. A checkpoint of DeepSpeed or
FSDP has no optimizer.pt: its weights alone can begin a run, as --model_name_or_path.
"""

import argparse
import ctypes
import ctypes.util
import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer

CHUNK_BYTES = 64 << 20  # as trireme/train/checkpoint_manifest.h
MOMENTS = ("exp_avg", "exp_avg_sq")


def xxh3():
    """bytes -> XXH3 of 64 bits as 16 hexadecimal digits."""
    try:
        import xxhash
        return xxhash.xxh3_64_hexdigest
    except ImportError:
        pass
    name = ctypes.util.find_library("xxhash")
    if name is None:
        refuse("neither libxxhash nor Python's xxhash is installed: pip install xxhash")
    function = ctypes.CDLL(name).XXH3_64bits
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
    return lambda data: f"{function(data, len(data)):016x}"


def refuse(text):
    sys.exit(f"from_transformers: {text}")


def model_of(folder):
    """The model without values, for its parameters' names."""
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)


class Weights:
    """The tensors of model.safetensors, or of the shards that its index lists."""

    def __init__(self, folder):
        index = folder / "model.safetensors.index.json"
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
        self.files = {}
        for name in sorted(names):
            if not (folder / name).exists():
                refuse(f"{folder / name} is missing: expected weights in safetensors")
            file = safe_open(folder / name, framework="pt")
            self.files.update((key, file) for key in file.keys())

    def get(self, name):
        if name not in self.files:
            refuse(f"the weights have no tensor '{name}', which the model of config.json has")
        return self.files[name].get_tensor(name)


def optimizer_of(folder, model):
    """name -> its moments; the first group's numbers; the steps done. The Trainer numbers the parameters that decay first."""
    file = folder / "optimizer.pt"
    if not file.exists():
        refuse(f"{file} is missing: of this folder the weights alone can begin a run (--model_name_or_path {folder})")
    saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    decays = set(Trainer.get_decay_parameter_names(None, model))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [[name for name in parameters if name in decays], [name for name in parameters if name not in decays]]
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(group) for group in groups]:
        refuse(f"{file}: its groups have {sizes} parameters; the Trainer of this version of Transformers makes groups of "
               f"{[len(group) for group in groups]} of this model: use the version that saved it, and full fine-tuning")
    moments, steps = {}, set()
    for group, names in zip(saved["param_groups"], groups):
        if group.get("amsgrad") or group.get("maximize"):
            refuse(f"{file}: amsgrad and maximize are not built")
        for number, name in zip(group["params"], names):
            state = saved["state"].get(number, {})
            if any(moment not in state for moment in MOMENTS):
                refuse(f"{file}: parameter {number} ('{name}') has {sorted(state)}; expected AdamW's exp_avg and exp_avg_sq")
            for moment in MOMENTS:
                if state[moment].shape != parameters[name].shape:
                    refuse(f"{file}: {moment} of parameter {number} is {list(state[moment].shape)}; '{name}' is "
                           f"{list(parameters[name].shape)}")
            moments[name] = {moment: state[moment] for moment in MOMENTS}
            steps.add(int(state["step"]))
    if len(steps) != 1:
        refuse(f"{file}: parameters have different numbers of steps: {sorted(steps)}")
    return moments, saved["param_groups"][0], steps.pop()


def write_safetensors(file, shapes, tensor_of):
    """Tensor by tensor, in fp32."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            values = tensor_of(name).to(torch.float32).contiguous()
            if not torch.isfinite(values).all():
                refuse(f"'{name}' has a value that is not finite")
            out.write(values.numpy().tobytes())
        out.flush()
        os.fsync(out.fileno())


def describe(file, checksum):
    with open(file, "rb") as data:
        return {"bytes": file.stat().st_size, "xxh3": [checksum(chunk) for chunk in iter(lambda: data.read(CHUNK_BYTES), b"")]}


def convert(source, out):
    checksum = xxh3()
    trainer = json.loads((source / "trainer_state.json").read_text())
    if "global_step" not in trainer:
        refuse(f"{source / 'trainer_state.json'} has no global_step: this is no checkpoint of a Transformers Trainer")
    step = trainer["global_step"]
    model = model_of(source)
    weights = Weights(source)
    moments, group, optimizer_steps = optimizer_of(source, model)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    missing = [name for name in shapes if name not in moments]
    if missing:
        refuse(f"'{missing[0]}' was not trained: frozen parameters are not built")
    final = out / "checkpoints" / f"step-{step}"
    if final.exists():
        refuse(f"{final} is there already")
    folder = final.with_name(final.name + ".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shard = "rank-00000.safetensors"
    stored = dict(shapes)
    stored.update((f"{name}/{moment}", shape) for name, shape in shapes.items() for moment in MOMENTS)
    parts = lambda name: name.rpartition("/")  # noqa: E731
    write_safetensors(folder / shard, stored,
                      lambda name: weights.get(name) if name in shapes else moments[parts(name)[0]][parts(name)[2]])
    options = {"learning_rate": float(group.get("initial_lr", group["lr"])), "adam_beta1": float(group["betas"][0]),
               "adam_beta2": float(group["betas"][1]), "adam_epsilon": float(group["eps"]),
               "weight_decay": float(group["weight_decay"])}
    if trainer.get("max_steps", 0) > 0:
        options["max_steps"] = trainer["max_steps"]
    total_bytes = 4 * sum(torch.Size(shape).numel() for shape in shapes.values())
    texts = {
        "trainer_state.json": {"step": step, "stage": 0, "tokens_seen": int(trainer.get("num_input_tokens_seen") or 0),
                               "optimizer_steps": optimizer_steps, "options": options,
                               # In fp16 these did not move the Trainer's schedule.
                               "overflowed_steps": max(0, step - optimizer_steps)},
        "model.safetensors.index.json": {"metadata": {"total_size": total_bytes},
                                         "weight_map": {name: shard for name in shapes}},
    }
    for name, text in texts.items():
        (folder / name).write_text(json.dumps(text, indent=1) + "\n")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "tekken.json",
                 "chat_template.jinja", "chat_template.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    templates = "additional_chat_templates"
    if (source / templates).is_dir():
        shutil.copytree(source / templates, folder / templates, ignore=lambda at, names: [n for n in names if not n.endswith(".jinja")])
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    manifest = {"format": 2, "step": step, "ranks": 1, "chunk_bytes": CHUNK_BYTES,
                "files": {file.relative_to(folder).as_posix(): describe(file, checksum) for file in files}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    folder.rename(final)
    given = " ".join(f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}" for name, value in options.items())
    print(f"{final}\ntrireme train --model_name_or_path {source} --output_dir {out} --resume_from_checkpoint true {given} "
          "--train_file ... (and --lr_scheduler_type, --warmup_steps, --max_grad_norm as they were)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a Trainer's checkpoint-N")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run that will go on, as --output_dir")
    arguments = parser.parse_args()
    convert(arguments.checkpoint, arguments.out)


if __name__ == "__main__":
    main()
