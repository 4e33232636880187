"""trireme.fused_loss: models of transformers without logits against themselves with them: loss and every gradient."""

import contextlib

import pytest
import torch
import trireme
from tensor_bytes import TensorBytes
from test_parallelize import SMALL, compare, gradients, gradients_of_all

EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.5)
MODELS = {
    "Llama": {},
    "Qwen3": dict(tie_word_embeddings=True),
    "Gemma2": dict(final_logit_softcapping=2.0),
    "Gemma3": dict(final_logit_softcapping=None),
    "Mixtral": EXPERTS,
    "Granite": dict(logits_scaling=4.0),
    "Cohere": dict(logit_scale=0.3),
    "Phi": {},  # a head with a bias
    "ModernBert": dict(local_attention=8),  # labels of the token itself
}


def make_model(family, changes, **more):
    import transformers

    options = {**SMALL, **changes, **more}
    if family == "ModernBert":
        for absent in ("num_key_value_heads", "head_dim"):
            del options[absent]
    config = getattr(transformers, {"Gemma3": "Gemma3Text"}.get(family, family) + "Config")(**options)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, family + ("ForMaskedLM" if family == "ModernBert" else "ForCausalLM"))(config).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def make_batch(tokens=29):
    ids = torch.randint(3, 67, (2, tokens), generator=torch.Generator().manual_seed(4))
    labels = ids.clone()
    labels[:, 2:9] = -100
    labels[1, 20:] = -100
    return {"input_ids": ids, "labels": labels}


def step(model, batch, upstream=1.0):
    model.zero_grad(set_to_none=True)
    output = model(**batch)
    (output.loss * upstream).backward()
    return output, (output.loss.item(), gradients(model))


@pytest.mark.parametrize("family", MODELS)
def test_loss_and_gradients_are_those_with_logits(family):
    model = make_model(family, MODELS[family])
    batch = make_batch()
    shifted = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    calls = [batch, {**batch, "num_items_in_batch": 11}, {**batch, "num_items_in_batch": torch.tensor(77)}]
    if family != "ModernBert":
        calls.append({**batch, "shift_labels": shifted.roll(1, 1)})
    for upstream, call in zip((1.0, 0.25, 8.0, 1.0), calls):
        plain, truth = step(model, call, upstream)
        with trireme.fused_loss(model, tokens_per_tile=7):
            fused, got = step(model, call, upstream)
            assert fused.logits is None and plain.logits is not None
            if "router_logits" in plain:
                assert torch.equal(fused.aux_loss, plain.aux_loss) and fused.aux_loss > 0
            logits = model(input_ids=batch["input_ids"]).logits
        assert torch.equal(logits, plain.logits)
        compare(truth, got)
    again, same = step(model, calls[0])
    assert again.logits is not None and not model._forward_hooks and not model._forward_pre_hooks and model.training
    assert "forward" not in model.get_output_embeddings().__dict__


def test_no_tensor_of_tokens_by_vocabulary_is_made():
    model = make_model("Gemma2", dict(final_logit_softcapping=2.0), vocab_size=4096, num_hidden_layers=1)
    batch = make_batch(128)
    whole = batch["labels"].numel() * 4096 * 4
    with TensorBytes() as plain:
        step(model, batch)
    with trireme.fused_loss(model, tokens_per_tile=16), TensorBytes() as fused:
        step(model, batch)
    assert plain.largest >= whole and plain.most_alive > 3 * whole
    assert fused.largest < whole / 4 and fused.most_alive < whole


def test_a_batch_without_targets_has_no_loss():
    model = make_model("Llama", {})
    batch = make_batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    with trireme.fused_loss(model):
        output, (loss, found) = step(model, batch)
    assert loss == 0 and all((gradient == 0).all() for gradient in found.values())


def test_evaluation_tuples_and_positional_labels():
    model = make_model("Llama", {}).eval()
    batch = make_batch()
    expected = model(**batch).loss
    with trireme.fused_loss(model), torch.no_grad():
        for output in (model(**batch, return_dict=False), model(batch["input_ids"], labels=batch["labels"], use_cache=False)):
            loss = output[0] if isinstance(output, tuple) else output.loss
            assert abs(loss - expected) < 5e-6 * expected and not loss.requires_grad
            values = output if isinstance(output, tuple) else tuple(output.values())
            assert not any(isinstance(value, torch.Tensor) and value.shape[-1:] == (67,) for value in values)
    assert not model.training


def test_lora_and_a_trained_copy_of_the_head():
    import peft

    for saved, adapted in ((None, ["q_proj", "down_proj"]), (["lm_head"], ["q_proj"]), (["lm_head", "embed_tokens"], ["q_proj"])):
        model = peft.get_peft_model(
            make_model("Qwen3", {}), peft.LoraConfig(r=4, target_modules=adapted, modules_to_save=saved, init_lora_weights=False)
        ).train()
        _, truth = step(model, make_batch())
        with trireme.fused_loss(model, tokens_per_tile=5):
            output, got = step(model, make_batch())
        assert output.logits is None and any("lm_head" in name for name in got[1]) == bool(saved)
        compare(truth, got)
    model = peft.get_peft_model(make_model("Qwen3", {}), peft.LoraConfig(r=4, target_modules=["lm_head"]))
    with pytest.raises(trireme.ConfigError, match="base_layer|expected one linear layer"), trireme.fused_loss(model):
        pass


def strange(change):
    """A Llama that does something with its logits before it takes its own loss."""
    import transformers

    class Strange(transformers.LlamaForCausalLM):
        def forward(self, input_ids, labels=None, **keywords):
            hidden = self.model(input_ids).last_hidden_state
            logits, loss = change(self, self.lm_head(hidden), hidden), None
            if labels is not None:
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=67, **keywords)
            return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits)

    return Strange(transformers.LlamaConfig(**SMALL))


class Shifted(torch.nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden) + 1


def other_head(model):
    model.lm_head = Shifted(32, 67)
    return model


REFUSED = {
    "asked for logsumexp": lambda: strange(lambda model, logits, hidden: logits - logits.logsumexp(-1, keepdim=True)),
    "asked for __getitem__": lambda: strange(lambda model, logits, hidden: logits[..., torch.arange(67)]),
    "asked for sigmoid": lambda: strange(lambda model, logits, hidden: logits.sigmoid()),
    "asked for bfloat16": lambda: strange(lambda model, logits, hidden: logits.bfloat16()),
    "asked for tanh": lambda: strange(lambda model, logits, hidden: logits.tanh().tanh()),
    "asked for __add__|asked for add": lambda: strange(lambda model, logits, hidden: logits + 1),
    "'Linear', 'Linear'. ran": lambda: strange(lambda model, logits, hidden: (logits, model.lm_head(hidden))[0]),
    "does something between|expected one": lambda: strange(lambda model, logits, hidden: hidden @ model.lm_head.weight.T),
    "expected one linear layer": lambda: other_head(strange(lambda model, logits, hidden: logits)),
    "holds no PreTrainedModel": lambda: torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("words", REFUSED)
def test_models_that_are_refused_are_named(words):
    model = REFUSED[words]().train()
    with pytest.raises(trireme.ConfigError, match=words), trireme.fused_loss(model):
        pass
    assert model.training and not model._forward_hooks and "forward" not in getattr(model, "lm_head", model).__dict__


def test_calls_that_are_refused_are_named():
    model, batch = make_model("Llama", {}), make_batch()
    with trireme.fused_loss(model):
        with pytest.raises(trireme.ConfigError, match="leave logits_to_keep out"):
            model(**batch, logits_to_keep=3)
        with pytest.raises(trireme.ConfigError, match="another ignore_index"):
            model(**batch, ignore_index=-1)
        with pytest.raises(trireme.ConfigError, match="expected one linear layer"), trireme.fused_loss(model):
            pass
        model.loss_function = lambda logits, labels, **_: logits.sum()
        with contextlib.suppress(trireme.ConfigError):
            pytest.fail(f"{model(**batch).loss}: an unknown loss function was given the sum")
    model.loss_function = lambda logits, labels, **_: torch.nn.functional.cross_entropy(logits.view(-1, 67), labels.view(-1) * 0 + 5)
    with pytest.raises(trireme.ConfigError, match="other targets than its labels"), trireme.fused_loss(model):
        pass


@pytest.mark.parametrize("count", [2, 4])
def test_whole_batches_over_ranks(ranks, count):
    ranks.run(run_whole_batches, count)


def run_whole_batches(group):
    layers = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])
    families = {"Llama": {}, "Gemma3": dict(final_logit_softcapping=2.0, **layers), "Mixtral": EXPERTS, "ModernBert": MODELS["ModernBert"]}
    for family, changes in families.items():
        model = make_model(family, changes)
        blocks = [
            lambda: trireme.fused_loss(model, tokens_per_tile=4),
            lambda: trireme.parallelize(model, group, whole_batches=True),
            lambda: contextlib.nullcontext() if family == "Mixtral" else trireme.tile_mlp(model, tokens_per_tile=4),
        ]
        for batch, inside_out in ((make_batch(), 1), ({**make_batch(), "num_items_in_batch": 11}, -1)):
            _, truth = step(model, batch)
            with contextlib.ExitStack() as block:
                for enter in blocks[::inside_out]:
                    block.enter_context(enter())
                output, (loss, _) = step(model, batch)
            assert output.logits is None
            compare(truth, (loss, gradients_of_all(model, group)))


def test_a_head_that_fully_shard_shards_by_itself(ranks):
    ranks.run(run_fully_shard, 2)


def run_fully_shard(group):
    import peft
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    batch = make_batch()
    count = int((batch["labels"][:, 1:] != -100).sum())
    mesh = DeviceMesh.from_group(group, "cpu")
    mine = {name: value[group.rank() :][:1] for name, value in batch.items()}  # one sample each
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    gemma = make_model("Gemma2", dict(final_logit_softcapping=2.0, tie_word_embeddings=False))
    for model in (gemma, peft.get_peft_model(make_model("Llama", {}), lora).train()):
        _, truth = step(model, batch)
        for part in (model.lm_head, *model.get_decoder().layers, model):
            fully_shard(part, mesh=mesh)
        with trireme.fused_loss(model, tokens_per_tile=5):
            output, (loss, found) = step(model, {**mine, "num_items_in_batch": count}, upstream=2.0)
        losses = trireme.SequenceGroup(group).all_sum(torch.tensor(loss))
        compare(truth, (losses.item(), {name: gradient.full_tensor() for name, gradient in found.items()}))
