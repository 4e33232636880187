"""trireme.parallelize: models of transformers over gloo ranks against themselves alone: loss and every gradient."""

import contextlib

import pytest
import torch
import trireme

SMALL = dict(
    vocab_size=67,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=16)
LAYERS = ["sliding_attention", "full_attention"]
MODELS = {
    "llama": ("Llama", {}),
    "llama, 5 heads": ("Llama", dict(num_attention_heads=5, num_key_value_heads=5, hidden_size=40)),
    "mistral, window": ("Mistral", dict(sliding_window=6)),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows of single layers": ("Qwen2", dict(use_sliding_window=True, sliding_window=5, layer_types=LAYERS)),
    "qwen3": ("Qwen3", {}),
    "gemma3": ("Gemma3", dict(sliding_window=5, layer_types=LAYERS)),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3Moe", dict(num_experts=4, **EXPERTS)),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 0])),
    "modernbert": ("ModernBert", dict(local_attention=8, layer_types=["full_attention", "sliding_attention"])),
}


def make_model(name):
    import transformers

    family, changes = MODELS[name]
    options = {**SMALL, **changes}
    classes = {"Gemma3": "Gemma3TextConfig"}
    if family == "ModernBert":
        for absent in ("num_key_value_heads", "head_dim"):
            del options[absent]
    config = getattr(transformers, classes.get(family, family + "Config"))(**options)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    kind = "ForMaskedLM" if family == "ModernBert" else "ForCausalLM"
    model = getattr(transformers, family + kind)(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def make_batch(kind, name):
    generator = torch.Generator().manual_seed(4)
    tokens, samples = 29, 1 if kind == "packed" else 2
    batch = {"input_ids": torch.randint(3, 67, (samples, tokens), generator=generator)}
    batch["labels"] = batch["input_ids"].clone()
    batch["labels"][:, 2:9] = -100
    if kind == "packed":
        batch["position_ids"] = torch.cat([torch.arange(n) for n in (3, 1, 14, 11)])[None]
    if kind in ("right padding", "left padding"):
        mask = torch.ones_like(batch["input_ids"])
        padding = slice(23, None) if kind == "right padding" else slice(None, 6)
        mask[0, padding] = 0
        batch["labels"][0, padding] = -100
        batch["attention_mask"] = mask
    return batch


def alone(model, batch):
    model.zero_grad(set_to_none=True)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    logits = model(**inputs, **({} if "Bert" in type(model).__name__ else {"use_cache": False})).logits
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    return loss.item(), gradients(model)


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def shared(model, batch, group, ring=1):
    model.zero_grad(set_to_none=True)
    sequence = trireme.SequenceGroup(group, ring=ring)
    part = trireme.shard(batch, sequence)
    targets = part.pop("shift_labels")
    with trireme.parallelize(model, sequence):
        loss = trireme.loss(model(**part).logits, targets, sequence)
        loss.backward()
    trireme.sum_gradients(model.parameters(), group)
    return loss.item(), gradients(model)


def compare(truth, got):
    assert abs(got[0] - truth[0]) <= 5e-6 * max(1, abs(truth[0])), (got[0], truth[0])
    assert got[1].keys() >= truth[1].keys()
    for name, gradient in got[1].items():
        expected = truth[1].get(name, torch.zeros_like(gradient))
        error, largest = (gradient - expected).abs().max().item(), expected.abs().max().item()
        assert error <= 1e-4 * largest + 1e-9, f"{name}: {error} of {largest}"


@pytest.mark.parametrize("count", [2, 4])
def test_each_family_equals_itself_alone(ranks, count):
    ranks.run(run_families, count)


def run_families(group):
    for name in MODELS:
        model = make_model(name)
        for kind in ("plain", "packed", "right padding"):
            if kind == "packed" and name == "modernbert":
                continue
            batch = make_batch(kind, name)
            try:
                compare(alone(model, batch), shared(model, batch, group))
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error
