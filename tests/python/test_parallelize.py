"""trireme.parallelize: models of transformers over gloo ranks against themselves alone: loss and every gradient."""

import contextlib
import copy
import functools
import math
import sys
import unittest.mock

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
# Queries and keys of 8 + 4, as wide as neither their values nor a head of the model.
LATENT = dict(num_key_value_heads=4, qk_nope_head_dim=8, qk_rope_head_dim=4, head_dim=4, q_lora_rank=16, kv_lora_rank=12)
LATENT.update(n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, **EXPERTS)
LAYERS = ["sliding_attention", "full_attention"]
# Layers that see all tokens have other heads than those with a window, and keys that are values too.
GEMMA4 = dict(num_hidden_layers=4, layer_types=2 * LAYERS, sliding_window=5, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True)
GEMMA4.update(final_logit_softcapping=3.0, hidden_size_per_layer_input=0)
# Of positions from 8 on queries are scaled.
SCALED = dict(rope_type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=8, max_position_embeddings=128, beta_fast=32.0)
SCALED.update(beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
MODELS = {
    "llama": ("Llama", {}),
    "llama, 5 heads": ("Llama", dict(num_attention_heads=5, num_key_value_heads=5, hidden_size=40)),
    "mistral, window": ("Mistral", dict(sliding_window=6)),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows of single layers": ("Qwen2", dict(use_sliding_window=True, sliding_window=5, layer_types=LAYERS)),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", dict(sliding_window=5, attn_logit_softcapping=1.0, final_logit_softcapping=3.0)),
    "gemma3": ("Gemma3", dict(sliding_window=5, layer_types=LAYERS)),
    "gemma4": ("Gemma4", GEMMA4),
    "gemma4, experts": ("Gemma4", dict(GEMMA4, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16)),
    "gemma4, keys of an earlier layer": (
        "Gemma4",
        dict(GEMMA4, attention_k_eq_v=False, num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=67),
    ),
    "ministral3": ("Ministral3", dict(rope_parameters=SCALED)),
    "mistral4": ("Mistral4", dict(LATENT, head_dim=16, qk_rope_head_dim=8, v_head_dim=8, rope_parameters=SCALED)),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3Moe", dict(num_experts=4, **EXPERTS)),
    "qwen3_moe, one expert a token": ("Qwen3Moe", dict(num_experts=4, **dict(EXPERTS, num_experts_per_tok=1))),
    "gpt_oss": ("GptOss", dict(sliding_window=5, layer_types=LAYERS, num_local_experts=4, num_experts_per_tok=2)),
    "gpt_oss, 5 heads": ("GptOss", dict(num_attention_heads=5, num_key_value_heads=5, layer_types=LAYERS, num_local_experts=4)),
    "deepseek_v2, narrow values": ("DeepseekV2", dict(v_head_dim=8, **LATENT)),
    "deepseek_v3, wide values": ("DeepseekV3", dict(v_head_dim=16, **LATENT)),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 0])),
    "modernbert": ("ModernBert", dict(local_attention=8, layer_types=["full_attention", "sliding_attention"])),
}
KINDS = ("plain", "packed", "right padding", "left padding")


def draw_weights(model, std):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)


def make_model(name):
    import transformers

    family, changes = MODELS[name]
    options = copy.deepcopy({**SMALL, **changes})  # a configuration may write into it
    classes = {"Gemma3": "Gemma3TextConfig", "Gemma4": "Gemma4TextConfig"}
    if family == "ModernBert":
        for absent in ("num_key_value_heads", "head_dim"):
            del options[absent]
    config = getattr(transformers, classes.get(family, family + "Config"))(**options)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    kind = "ForMaskedLM" if family == "ModernBert" else "ForCausalLM"
    model = getattr(transformers, family + kind)(config).train()
    draw_weights(model, 0.3)
    with torch.no_grad():
        for layer in model.base_model.layers if family == "GptOss" else []:
            layer.self_attn.sinks.copy_(torch.linspace(2, -1, len(layer.self_attn.sinks)))
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


def documents_apart(model, batch):
    """gpt-oss tells flash attention its position_ids, which then parts packed documents, but not its own masks: here they are told."""
    if "GptOss" not in type(model).__name__ or "position_ids" not in batch:
        return contextlib.nullcontext()
    module = sys.modules[type(model).__module__]
    makers = {name: getattr(module, name) for name in ("create_causal_mask", "create_sliding_window_causal_mask")}
    told = {name: functools.partial(make, position_ids=batch["position_ids"]) for name, make in makers.items()}
    return unittest.mock.patch.multiple(module, **told)


def alone(model, batch):
    model.zero_grad(set_to_none=True)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with documents_apart(model, batch):
        logits = model(**inputs, **({} if "Bert" in type(model).__name__ else {"use_cache": False})).logits
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    return loss.item(), gradients(model)


def by_turns(group, work, batches):
    """{kind: work(batch)}, each worked out by one rank."""
    mine, everyone = {}, [None] * group.size()
    for place, (kind, batch) in enumerate(batches.items()):
        if place % group.size() == group.rank():
            mine[kind] = work(batch)
    torch.distributed.all_gather_object(everyone, mine, group)
    return {kind: result for results in everyone for kind, result in results.items()}


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def gradients_of_all(model, group):
    """Their sums over the ranks, in fp64 and one exchange."""
    own = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    sums = torch.cat([gradient.double().flatten() for gradient in own.values()])
    torch.distributed.all_reduce(sums, group=group)
    parts = sums.split([gradient.numel() for gradient in own.values()])
    return {name: part.view_as(gradient).to(gradient.dtype) for (name, gradient), part in zip(own.items(), parts)}


def shared(model, batch, group, ring=1):
    model.zero_grad(set_to_none=True)
    sequence = trireme.SequenceGroup(group, ring=ring)
    part = trireme.shard(batch, sequence)
    targets = part.pop("shift_labels")
    with trireme.parallelize(model, sequence):
        loss = trireme.loss(model(**part).logits, targets, sequence)
        loss.backward()
    return loss.item(), gradients_of_all(model, group)


def compare(truth, got):
    assert all(gradient.abs().max() > 1e-6 for name, gradient in truth[1].items() if name.endswith("sinks"))
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
        batches = {kind: make_batch(kind, name) for kind in KINDS if (name, kind) != ("modernbert", "packed")}
        truths = by_turns(group, lambda batch: alone(model, batch), batches)
        for kind, batch in batches.items():
            try:
                compare(truths[kind], shared(model, batch, group))
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error


@pytest.mark.parametrize("count, ring", [(2, 2), (4, 2)])
def test_a_ring_beyond_the_heads(ranks, count, ring):
    ranks.run(run_ring, count, ring)


def run_ring(group, ring):
    for name in ("llama", "mistral, window"):
        model = make_model(name)
        for kind in ("plain", "packed", "right padding"):
            batch = make_batch(kind, name)
            compare(alone(model, batch), shared(model, batch, group, ring))


def test_ranks_with_few_tokens(ranks):
    ranks.run(run_few, 4)


def run_few(group):
    for name in ("llama", "gemma3", "mixtral"):
        model = make_model(name)
        for tokens in (4, 6):
            batch = {key: value[:, :tokens] for key, value in make_batch("plain", name).items()}
            batch["labels"] = batch["input_ids"]
            compare(alone(model, batch), shared(model, batch, group))
        with pytest.raises(trireme.ConfigError, match="at most 3 ranks"):
            shared(model, {key: value[:, :3] for key, value in batch.items()}, group)


def test_checkpointed_layers_find_their_own_sequence_again(ranks):
    ranks.run(run_checkpointing, 2)


def run_checkpointing(group):
    """Two batches of other lengths and documents go forward before either goes back."""
    model = make_model("qwen2, windows of single layers")
    batches = [make_batch("packed", ""), make_batch("plain", "")]
    truths = [alone(model, batch) for batch in batches]
    compare_checkpointed(model, batches, truths, group, reentrant=False)


def compare_checkpointed(model, batches, truths, group, reentrant):
    """truths: of each batch alone."""
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.zero_grad(set_to_none=True)
    with trireme.parallelize(model, group):
        losses = []
        for batch in batches:
            part = trireme.shard(batch, group)
            targets = part.pop("shift_labels")
            losses.append(trireme.loss(model(**part).logits, targets, group))
        sum(losses).backward()
    trireme.sum_gradients(model.parameters(), group)
    truth = {name: truths[0][1][name] + truths[1][1][name] for name in truths[0][1]}
    compare((sum(t[0] for t in truths), truth), (sum(losses).item(), gradients(model)))


def test_models_side_by_side_and_undone(ranks):
    ranks.run(run_side_by_side, 2)


def run_side_by_side(group):
    from transformers import AttentionInterface, AttentionMaskInterface

    registered = set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)
    policy, reference, outsider = make_model("llama"), make_model("llama"), make_model("llama")
    reference.config = policy.config  # models may share one object
    config = policy.config
    batch = make_batch("plain", "llama")
    truth, inputs = alone(policy, batch), {"input_ids": batch["input_ids"], "use_cache": False}
    logits = outsider(**inputs).logits
    part = trireme.shard(batch, group)
    targets = part.pop("shift_labels")
    with trireme.parallelize(policy, group):
        assert torch.equal(outsider(**inputs).logits, logits)
        assert torch.equal(reference(**inputs).logits, logits)
        with trireme.parallelize(reference, trireme.SequenceGroup(group, ring=2)):
            assert torch.equal(outsider(**inputs).logits, logits)
            value = trireme.loss(policy(**part).logits, targets, group)
        assert torch.equal(reference(**inputs).logits, logits)
        assert abs(value.item() - truth[0]) < 5e-6 * abs(truth[0])
    with contextlib.suppress(KeyError), trireme.parallelize(policy, group):
        raise KeyError
    assert policy.config is config and all(m.config is config for m in policy.model.layers[0].self_attn.modules() if hasattr(m, "config"))
    assert config._attn_implementation == "eager" and policy.training
    assert not policy._forward_pre_hooks and not policy._forward_hooks
    assert torch.equal(policy(**inputs).logits, logits)
    assert registered == (set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping))


REFUSED = {
    "mamba, by a module": (r"mixer.*mixes tokens outside attention", "Mamba", dict(state_size=4)),
    "lfm2, by its convolution": (r"mixes tokens outside attention", "Lfm2", dict(layer_types=["conv", "full_attention"])),
    "roberta, by its positions": ("counts positions in a way of its own", "Roberta", {}),
    "deepseek_v32, by its sparse attention": ("DeepseekV32ForCausalLM reads its mask", "DeepseekV32", dict(v_head_dim=8, **LATENT)),
    "dropout": ("with that dropout at 0", "Llama", dict(attention_dropout=0.1)),
    "opt, by layers that it drops": ("build the model with layerdrop=0", "OPT", dict(layerdrop=0.5, word_embed_proj_dim=32, ffn_dim=48)),
}


def test_models_that_are_refused_are_named(ranks):
    ranks.run(run_refused_models, 2)


def run_refused_models(group):
    import transformers

    ids = trireme.shard(make_batch("plain", ""), group)["input_ids"]
    for name, (words, family, changes) in REFUSED.items():
        config = getattr(transformers, family + "Config")(**{**SMALL, **changes})
        config._attn_implementation = "eager"
        model = getattr(transformers, family + "ForCausalLM")(config).train()
        with pytest.raises(trireme.ConfigError, match=words), trireme.parallelize(model, group):
            model(input_ids=ids)
        assert model.training and model.config._attn_implementation == "eager", name
    noisy = make_model("llama")
    with trireme.parallelize(noisy, group):
        noisy.get_input_embeddings().neftune_noise_alpha = 5
        with pytest.raises(trireme.ConfigError, match="NEFTune"):
            noisy(input_ids=ids)
    for labels in (2, 12, 24):  # as many as the look has tokens, too
        scores = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SMALL, num_labels=labels))
        with pytest.raises(trireme.ConfigError, match="not a value for each token"), trireme.parallelize(scores, group):
            pass


def test_models_that_count_tokens_by_themselves_are_refused(ranks):
    ranks.run(run_own_counts, 1)


def run_own_counts(group):
    """They take position_ids, and also add positions of their own, or scale by the length of a sample."""
    import transformers

    class OwnCount(transformers.LlamaForCausalLM):
        scales = False

        def forward(self, input_ids=None, position_ids=None, **more):
            length = input_ids.shape[1]
            factors = math.log(length) if self.scales else torch.arange(1, length + 1)[:, None]
            return super().forward(inputs_embeds=self.model.embed_tokens(input_ids) * factors, position_ids=position_ids, **more)

    model = OwnCount(transformers.LlamaConfig(**SMALL, attn_implementation="eager"))
    for model.scales in (False, True):
        with pytest.raises(trireme.ConfigError, match="OwnCount gives the halves of a sample.* other values"), trireme.parallelize(model, group):
            pass


class BatchMean(torch.nn.Module):
    """Subtracts each feature's mean over all tokens, as a norm over a batch does."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x - x.mean((0, 1)))


def test_mixing_is_found_in_any_module(ranks):
    ranks.run(run_mixing, 1)


def run_mixing(group):
    model = make_model("llama")
    model.model.layers[1].mlp = BatchMean(model.model.layers[1].mlp)
    with pytest.raises(trireme.ConfigError, match=r"model.layers.1.mlp.* mixes tokens"):
        with trireme.parallelize(model, group):
            pass


def test_statistics_of_a_batch_are_found_though_they_mix_in_training_alone(ranks):
    ranks.run(run_batch_statistics, 1)


def run_batch_statistics(group):
    model = make_model("llama")
    model.model.norm = torch.nn.Sequential(torch.nn.Flatten(0, 1), torch.nn.BatchNorm1d(32), torch.nn.Unflatten(0, (2, 24)))
    with pytest.raises(trireme.ConfigError, match=r"model.norm.1 \(BatchNorm1d\) mixes tokens"), trireme.parallelize(model, group):
        pass


def test_a_statistic_of_masked_tokens_is_found(ranks):
    ranks.run(run_masked_tokens, 1)


def run_masked_tokens(group):
    """ESM-2 scales a sample's embeddings by how many of its tokens are masked."""
    import transformers

    for dropped in (False, True):
        more = dict(mask_token_id=66, token_dropout=dropped, position_embedding_type="rotary")
        model = transformers.EsmForMaskedLM(transformers.EsmConfig(**{**SMALL, **more}, attn_implementation="eager")).eval()
        refused = pytest.raises(trireme.ConfigError, match=r"esm.embeddings .* mixes tokens outside attention")
        with refused if dropped else contextlib.nullcontext(), trireme.parallelize(model, group):
            pass


def test_positions_that_the_mask_counts_are_given_or_refused(ranks):
    ranks.run(run_positions_of_the_mask, 2)


def run_positions_of_the_mask(group):
    """OPT counts from the first token behind the padding on the left."""
    import transformers

    sizes = dict(ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0, layerdrop=0.0, attn_implementation="eager")
    torch.manual_seed(3)
    model = transformers.OPTForCausalLM(transformers.OPTConfig(**{**SMALL, **sizes})).train()
    for kind in ("plain", "right padding"):
        batch = make_batch(kind, "opt")
        compare(alone(model, batch), shared(model, batch, group))
    batch = make_batch("left padding", "opt")
    with pytest.raises(trireme.ConfigError, match="counts positions by its attention_mask"):
        shared(model, batch, group)
    with pytest.raises(trireme.ConfigError, match="counts positions by its attention_mask"):
        with trireme.parallelize(model, group, whole_batches=True):
            model(**batch)
    given = dict(batch, position_ids=(batch["attention_mask"].cumsum(1) - 1).clamp(min=0))
    compare(alone(model, batch), shared(model, given, group))


def test_wrapped_embeddings(ranks):
    ranks.run(run_wrapped_embeddings, 2)


def run_wrapped_embeddings(group):
    """PEFT's: a trained copy, single trained tokens, LoRA."""
    import peft

    batch = make_batch("plain", "llama")
    for more in (dict(modules_to_save=["embed_tokens"]), dict(trainable_token_indices=[5, 9]), dict(target_modules=["embed_tokens"])):
        config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj"], "init_lora_weights": False, **more})
        model = peft.get_peft_model(make_model("llama"), config).train()
        truth = alone(model, batch)
        assert any("embed_tokens" in name for name in truth[1])
        compare(truth, shared(model, batch, group))


def test_calls_that_are_refused_are_named(ranks):
    ranks.run(run_refused_calls, 2)


def run_refused_calls(group):
    batch = make_batch("plain", "llama")
    part = trireme.shard(batch, group)
    part.pop("shift_labels")
    ids = part["input_ids"]
    hole = torch.ones_like(ids)
    hole[:, 4] = 0
    packed = trireme.shard(make_batch("packed", ""), group)
    packed.pop("shift_labels")
    calls = {
        "called with labels": dict(part, labels=ids),
        "called with logits_to_keep": dict(part, logits_to_keep=1),
        "called with use_cache": dict(part, use_cache=True),
        "neither input_ids": {},
        "with a hole": dict(part, attention_mask=hole),
        "with values from 1 to 2": dict(part, attention_mask=torch.full_like(ids, 1 + group.rank())),
        "restart beside an attention_mask": dict(packed, attention_mask=torch.ones_like(packed["input_ids"])),
        "the ranks' calls differ": dict(part) if group.rank() else dict(part, attention_mask=hole),
        "the shard's tokens alone": dict(part, attention_mask=torch.ones(2, 29)),
        "does not know, colour": dict(part, colour=1),
    }
    model = make_model("llama")
    with trireme.parallelize(model, group):
        for words, keywords in calls.items():
            with pytest.raises(trireme.ConfigError, match=words):
                model(**keywords)
        other = trireme.shard({"input_ids": batch["input_ids"] - group.rank()}, group)["input_ids"]
        with pytest.raises(trireme.ConfigError, match="shards of different batches"):
            model(other)
        model(other.clone() if group.rank() else other)  # which batch a copy is of is not known
        with pytest.raises(trireme.ConfigError, match="called by itself"):
            model.model(ids)
    with trireme.parallelize(make_model("modernbert"), group) as encoder:
        with pytest.raises(trireme.ConfigError, match="see across documents"):
            encoder(**packed)
    with pytest.raises(trireme.ConfigError, match="holds no PreTrainedModel"):
        trireme.parallelize(torch.nn.Linear(2, 2), group).__enter__()
