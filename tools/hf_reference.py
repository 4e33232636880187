#!/usr/bin/env python3
"""Makes a reference file for `trireme verify` from any Hugging Face causal language model, or a BERT.

    tools/hf_reference.py MODEL_DIR --out reference.safetensors --seq 128 --batch 2
    tools/hf_reference.py MODEL_DIR --out reference.safetensors --scale-weights 4 --out-model SCALED_DIR
    tools/hf_reference.py MODEL_DIR --out reference.safetensors --seq 128 --documents 40,1,20
    tools/hf_reference.py MODEL_DIR --out reference.safetensors --seq 128 --adapter ADAPTER_DIR

The file holds input_ids and labels [B, S] int64 (labels aligned with the inputs, -100 ignored), loss, logits
[B, S, V] and grad.<parameter name>, all fp32. The loss is the model's own: the mean over valid shifted labels; of a
BERT over those 15 of 100 positions that were chosen to be predicted, unshifted.
Of a model that reads images too, the whole model is run on tokens alone, and gradients are those of its language model,
under the names that this has by itself.
Attention is the eager kind. With --dtype float64 (the default) everything but the rotary tables is computed in
fp64 and rounded once at the end, so that what a comparison sees is the other side's error alone.

With --adapter, a folder of PEFT, the model has that LoRA adapter, and only its gradients are there, under the names in
the adapter's file.

With freshly initialised weights most gradients are so small that a wrong one passes; --scale-weights F multiplies
every matrix by F and jitters norm weights and biases, and --out-model keeps that model to verify against.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM
from transformers.utils import logging

logging.disable_progress_bar()


class KeepFloat64(TorchFunctionMode):
    """transformers asks for fp32 in norms, softmax and loss; a tensor that is already fp64 stays so."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        double = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64
        if double and func is torch.Tensor.float:
            return args[0]
        if double and func is torch.Tensor.to and (torch.float32 in args[1:] or kwargs.get("dtype") == torch.float32):
            return args[0]
        if double and kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def to_float64(model):
    """Parameters in fp64; the rotary frequencies keep their own fp32 values, which every implementation shares."""
    kept = {name: buffer for name, buffer in model.named_buffers() if buffer.dtype == torch.float32}
    model.double()
    for name, buffer in kept.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], buffer)
    return model


def scale_weights(model, factor, seed):
    """Matrices times `factor`; norm weights and biases, which start at 1 and 0, moved at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
            else:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.add_((0.2 if name.endswith("weight") else 0.5) * noise.to(parameter.dtype))


def auto_class(config):
    if config.get_text_config() is not config:
        return AutoModelForImageTextToText
    return AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM


def load(path):
    config = AutoConfig.from_pretrained(path)
    # The kernels of transformers 5 for experts have no fp64.
    mixture = config.get_text_config().to_dict().keys() & {"num_experts", "num_local_experts"}
    experts = {"experts_implementation": "eager"} if mixture else {}
    return auto_class(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **experts)


def with_adapter(model, path):
    """The model with a LoRA adapter of PEFT, which alone is trained."""
    from peft import PeftModel  # nothing else needs it

    return PeftModel.from_pretrained(model, path, is_trainable=True)


def draw_batch(config, batch, seq, seed):
    """Random ids and labels; the padding id, whose lookups transformers leaves without gradient, is among them."""
    config = config.get_text_config()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (batch, seq), generator=generator)
    if config.pad_token_id is not None:
        ids[:, seq // 2] = config.pad_token_id
    return ids, draw_labels(config, ids, generator)


def draw_labels(config, ids, generator):
    """Labels for the ids; for a masked language model most of what is to be predicted is hidden in them."""
    labels = ids.clone()
    if config.model_type == "bert":
        labels[torch.rand(ids.shape, generator=generator) >= 0.15] = -100
        labels[0, 0] = ids[0, 0]
        hidden = (labels != -100) & (torch.rand(ids.shape, generator=generator) < 0.8)
        ids[hidden] = config.vocab_size - 1  # any id serves as the mask token
        return labels
    labels[torch.rand(ids.shape, generator=generator) < 0.1] = -100
    labels[:, : min(4, ids.shape[1] // 2)] = -100
    return labels


def reference(model, input_ids, labels):
    """One forward and backward in the model's dtype -> the tensors of the reference file, fp32."""
    model.zero_grad(set_to_none=True)
    model.eval()
    with KeepFloat64():
        out = model(input_ids=input_ids, labels=labels, use_cache=False)
        assert out.loss.dtype == out.logits.dtype == model.dtype
        out.loss.backward()
    result = {
        "input_ids": input_ids,
        "labels": labels,
        "loss": out.loss.detach().float().reshape(1),
        "logits": out.logits.detach().float(),
    }
    result.update(gradients(model))
    return {name: tensor.contiguous() for name, tensor in result.items()}


def gradients(model):
    """Of every parameter that is trained, under its names in files; zero where the loss does not reach it."""
    whole = model.config.get_text_config() is not model.config
    trained = [(name.replace(".modules_to_save.default.", ".").replace(".default.", ".").replace("model.language_model.", "model."), parameter)
               for name, parameter in model.named_parameters()
               if parameter.requires_grad and not (whole and reads_images(name))]
    return {"grad." + in_file: gradient.float() for name, parameter in trained for in_file, gradient
            in names_in_file(model.config.model_type, name,
                             torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)}


def reads_images(name):
    return any(part in name for part in ("vision_tower.", "multi_modal_projector.", "visual.", "audio_tower.", "embed_vision.", "embed_audio.",
                                        "vision_embedder."))


def names_in_file(model_type, name, tensor):
    """A parameter's name and tensor; of a mixture, whose experts transformers 5 holds as one tensor, each expert's."""
    mixtral = model_type == "mixtral"
    name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
    layer, experts, kind = name.partition(".experts.")
    if not experts or tensor.dim() != 3 or model_type.startswith("gemma4"):  # whose files hold it so
        return [(name, tensor)]
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    halves = [gate, up] if kind == "gate_up_proj" else [down]
    return [(f"{layer}.experts.{expert}.{half}.weight", part) for expert, matrix in enumerate(tensor)
            for half, part in zip(halves, matrix.chunk(len(halves)))]


def forget_lengths(model):
    """Dynamic rotary embeddings otherwise keep the frequencies of the longest sequence so far."""
    for module in model.modules():
        for name in list(vars(module)):
            if name.endswith("max_seq_len_cached"):
                setattr(module, name, 0)


def packed_reference(model, input_ids, labels, pieces):
    """The same for rows that hold several documents, or padding: each piece (row, begin, end) runs alone, the loss is the
    sum over all targets divided by their number, and tokens in no piece are padding."""
    model.zero_grad(set_to_none=True)
    model.eval()
    shift = 0 if model.config.model_type == "bert" else 1
    positions = torch.zeros_like(input_ids)
    attention_mask = torch.zeros_like(input_ids)
    logits = torch.zeros(*input_ids.shape, model.config.get_text_config().vocab_size)
    labels = labels.clone()
    for row, begin, end in pieces:
        positions[row, begin:end] = torch.arange(end - begin)
        attention_mask[row, begin:end] = 1
        if shift:
            labels[row, begin] = -100  # no one's target
    labels[attention_mask == 0] = -100
    targets = int((labels != -100).sum())
    loss = 0.0
    for row, begin, end in pieces:
        forget_lengths(model)
        with KeepFloat64():
            out = model(input_ids=input_ids[row : row + 1, begin:end], use_cache=False).logits[0]
            logits[row, begin:end] = out.detach().float()
            of_piece = torch.nn.functional.cross_entropy(out[: len(out) - shift], labels[row, begin + shift : end],
                                                         ignore_index=-100, reduction="sum") / targets
            of_piece.backward()
        loss += of_piece.item()
    result = {
        "input_ids": input_ids,
        "labels": labels,
        "position_ids": positions,
        "loss": torch.tensor([loss], dtype=torch.float32),
        "logits": logits,
    }
    if not bool(attention_mask.all()):
        result["attention_mask"] = attention_mask
    result.update(gradients(model))
    return {name: tensor.contiguous() for name, tensor in result.items()}


def cut_pieces(documents, padding, batch, seq):
    """(row, begin, end) of every document of every row: lengths such as 40,1,20 (what is left of a row is its last
    document), and padding such as 0,17 (tokens at the end of each row)."""
    lengths = [int(word) for word in documents.split(",")] if documents else []
    pads = [int(word) for word in padding.split(",")] if padding else [0]
    pieces = []
    for row in range(batch):
        end, begin = seq - pads[row % len(pads)], 0
        # Another order in every row, so that samples differ.
        for length in lengths[row % max(1, len(lengths)) :] + lengths[: row % max(1, len(lengths))]:
            if begin + length < end:
                pieces.append((row, begin, begin + length))
                begin += length
        if begin < end:
            pieces.append((row, begin, end))
    return pieces


def read_tokens(path):
    """A JSON list of token ids, or of lists of them; or ids separated by white space, one sequence a line."""
    with open(path) as file:
        text = file.read()
    if text.lstrip().startswith("["):
        rows = json.loads(text)
        rows = rows if rows and isinstance(rows[0], list) else [rows]
    else:
        rows = [[int(word) for word in line.split()] for line in text.splitlines() if line.strip()]
    if len({len(row) for row in rows}) != 1:
        raise SystemExit(f"{path}: every sequence must have the same number of tokens")
    return torch.tensor(rows, dtype=torch.int64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory with config.json and weights")
    parser.add_argument("--out", required=True, help="the reference file to write")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", help="token ids to use instead of random ones (then --seq and --batch do not count)")
    parser.add_argument("--documents", help="lengths of packed documents, such as 40,1,20; each is run alone")
    parser.add_argument("--padding", help="tokens of padding at the end of each row, such as 0,17; it is not run")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64", help="of the computation")
    parser.add_argument("--adapter", help="folder of a LoRA adapter, whose gradients are wanted in place of the model's")
    parser.add_argument("--scale-weights", type=float, metavar="F")
    parser.add_argument("--out-model", help="where to write the scaled model")
    options = parser.parse_args()
    if options.scale_weights is not None and not options.out_model:
        parser.error("--scale-weights needs --out-model: the reference would belong to no model on disk")

    model = load(options.model)
    if options.scale_weights is not None:
        scale_weights(model, options.scale_weights, options.seed)
        model.save_pretrained(options.out_model)
    if options.tokens:
        input_ids = read_tokens(options.tokens)
        if input_ids.min() < 0 or input_ids.max() >= model.config.get_text_config().vocab_size:
            raise SystemExit(f"{options.tokens}: token ids must lie in 0 .. {model.config.get_text_config().vocab_size - 1}")
        labels = draw_labels(model.config, input_ids, torch.Generator().manual_seed(options.seed))
    else:
        input_ids, labels = draw_batch(model.config, options.batch, options.seq, options.seed)
    if options.adapter:
        model = with_adapter(model, options.adapter)
    if options.dtype == "float64":
        to_float64(model)
    if options.documents or options.padding:
        tensors = packed_reference(model, input_ids, labels, cut_pieces(options.documents, options.padding, *input_ids.shape))
    else:
        tensors = reference(model, input_ids, labels)
    save_file(tensors, options.out, metadata={"format": "pt"})
    # Softmax does not see the bias of BERT's keys, whose gradient is rounding.
    smallest = min((t.abs().max().item(), n) for n, t in tensors.items()
                   if n.startswith("grad.") and not n.endswith("attention.self.key.bias"))
    print(f"{options.out}: {input_ids.shape[0]} x {input_ids.shape[1]} tokens, loss {tensors['loss'].item():.6f}, "
          f"gradient with the smallest largest entry: {smallest[1]} ({smallest[0]:.3g})")
    if smallest[0] < 1e-5:
        print("hint: gradients this small hide errors; see --scale-weights", file=sys.stderr)


if __name__ == "__main__":
    main()
