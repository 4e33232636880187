"""trireme.verify: right models pass with the numbers of the model alone, faults are found and named, the model stays as it was."""

import pytest
import torch
import trireme
from test_parallelize import SMALL, alone, make_batch, make_model


def test_right_models_pass_with_the_numbers_of_the_model_alone(ranks):
    ranks.run(run_right_models, 4, 2)


def test_one_rank_is_compared_with_transformers_too(ranks):
    ranks.run(run_right_models, 1, 1)


def run_right_models(group, ring):
    cases = (
        ("llama", "packed", trireme.SequenceGroup(group, ring=ring), False),
        ("mixtral", "right padding", group, False),
        ("mixtral", "packed", group, True),
    )
    for name, kind, of, balances in cases:
        model, batch = make_model(name), make_batch(kind, name)
        model.config.output_router_logits = balances
        loss, gradients = alone(model, batch)
        found = trireme.verify(model, batch, of)
        assert found.passed and (found.ranks, found.batch, found.sequence_tokens) == (group.size(), len(batch["input_ids"]), 29), found
        if balances:  # what the router costs is in the model's loss alone
            assert found.reference_loss > loss * (1 + 1e-5)
            continue
        assert found.reference_loss == pytest.approx(loss, rel=1e-6) and found.loss == pytest.approx(loss, rel=5e-6)
        norm = torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm().item()
        assert found.reference_gradient_norm == pytest.approx(norm, rel=1e-6) and found.gradient_norm == pytest.approx(norm, rel=1e-4)
        assert {row.name for row in found.gradients} == {name for name, _ in model.named_parameters()}
        for row in found.gradients:
            expected = gradients[row.name].abs().max().item() if row.name in gradients else 0
            assert row.largest == pytest.approx(expected, rel=1e-4)
        assert found.gradients[0] == found.worst and found.worst.error >= found.gradients[-1].error
        lines = str(found).splitlines()
        assert lines[0] == f"input    {found.batch} x 29 tokens over {found.ranks} rank{'s' * (found.ranks > 1)}, torch.float32"
        assert lines[4].endswith(f"grad.{found.worst.name}")
        assert lines[-1] == f"PASSED: {len(found.gradients)} gradients, tolerance 1.0e-04 of each one's largest entry"


def test_encoders_whose_labels_are_not_shifted_and_whose_key_biases_have_no_gradient(ranks):
    ranks.run(run_encoder, 2)


def run_encoder(group):
    import transformers

    own = {name: value for name, value in SMALL.items() if name not in ("num_key_value_heads", "head_dim")}
    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**own, **none)).train()
    found = trireme.verify(model, make_batch("right padding", ""), group)
    assert found.passed, found
    biases = {row.name: row for row in found.gradients}
    largest = max(row.largest for row in found.gradients)
    assert biases["bert.encoder.layer.0.attention.self.key.bias"].largest == largest
    assert biases["bert.encoder.layer.0.attention.self.query.bias"].largest < largest


def test_packed_documents_of_models_that_take_use_cache_among_other_words(ranks):
    ranks.run(run_use_cache_among_others, 2)


class Wrapper(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, position_ids, labels=None):
        return self.model(input_ids=input_ids, position_ids=position_ids, labels=labels)


def run_use_cache_among_others(group):
    import peft
    import transformers

    own = {name: value for name, value in SMALL.items() if name != "head_dim"}
    granite = transformers.GraniteMoeForCausalLM(
        transformers.GraniteMoeConfig(**own, num_local_experts=4, num_experts_per_tok=2, attn_implementation="eager")
    )
    adapter = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    for model in (peft.get_peft_model(make_model("llama"), adapter), granite.train(), Wrapper(make_model("llama"))):
        found = trireme.verify(model, make_batch("packed", ""), group)
        assert found.passed, found


class WrongOnShards(torch.nn.Module):
    """Passes its input on; where it sees less than the whole, with another gradient of its weight, or with other values."""

    def __init__(self, inner, wrong_values):
        super().__init__()
        self.inner, self.wrong_values = inner, wrong_values
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        weight = self.weight
        if x.shape[1] not in (12, 24, 29):  # those of the looks for token mixing, and the whole
            weight = weight * 1.001 if self.wrong_values else weight + 0.001 * (weight - weight.detach())
        return self.inner(x) * weight


def test_faults_are_found_and_named(ranks):
    ranks.run(run_faults, 2)


def run_faults(group):
    for wrong_values in (False, True):
        model, batch = make_model("llama"), make_batch("plain", "")
        model.model.layers[1].mlp = WrongOnShards(model.model.layers[1].mlp, wrong_values)
        found = trireme.verify(model, batch, group)
        assert not found.passed and "FAILED" in str(found) and "beyond it" in str(found)
        if not wrong_values:
            assert found.worst.name == "model.layers.1.mlp.weight" and found.worst.error == pytest.approx(1e-3, rel=1e-2)
            assert found.gradients[1].error < 1e-5
            assert trireme.verify(model, batch, group, tolerance=2e-3).passed
        else:
            assert abs(found.loss / found.reference_loss - 1) > 5e-6
            assert not trireme.verify(model, batch, group, tolerance=1).passed  # by the loss


def test_the_model_stays_as_it_was(ranks):
    ranks.run(run_untouched, 2)


def run_untouched(group):
    model, batch = make_model("llama"), make_batch("plain", "")
    model.model.layers[0].eval()
    model.lm_head.weight.requires_grad_(False)
    alone(model, batch)
    kept = {name: (p, p.clone(), p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    config, state, given = model.config, torch.get_rng_state(), dict(batch)
    steps = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(steps.append)
    assert trireme.verify(model, batch, group).passed
    assert not steps and torch.equal(torch.get_rng_state(), state) and model.config is config and batch.keys() == given.keys()
    assert modes == [module.training for module in model.modules()]
    for name, parameter in model.named_parameters():
        same, value, gradient, entries = kept[name]
        assert parameter is same and torch.equal(parameter, value) and parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, entries)


def test_low_precision_has_a_tolerance_of_its_own(ranks):
    ranks.run(run_bf16, 2)


def run_bf16(group):
    model, batch = make_model("llama"), make_batch("plain", "")
    low = trireme.verify(model.bfloat16(), batch, group)
    assert low.passed and low.dtype == torch.bfloat16 and (low.tolerance, low.loss_tolerance) == (0.25, 2**-7)
    assert low.worst.error > 1e-3  # it would not pass as fp32
    assert str(low).endswith("copy.deepcopy(model).float() gives the sharp answer")
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = trireme.verify(model, batch, group)
    assert mixed.passed and mixed.dtype == torch.bfloat16, mixed
    sharp = trireme.verify(model, batch, group)
    assert sharp.passed and sharp.tolerance == 1e-4


def test_what_cannot_be_compared_is_refused_on_every_rank(ranks):
    ranks.run(run_refused, 2)


def run_refused(group):
    import transformers

    batch = make_batch("plain", "")
    other = {name: value.roll(group.rank(), 0) for name, value in batch.items()}
    shorter = {name: value[:, : 29 - group.rank()] for name, value in batch.items()}
    dropout = make_model("llama")
    dropout.model.layers[0].mlp = torch.nn.Sequential(dropout.model.layers[0].mlp, torch.nn.Dropout(0.1))
    seeded = make_model("llama")
    with torch.no_grad():
        seeded.model.norm.weight[3] += group.rank()
    wrapped = torch.nn.parallel.DistributedDataParallel(make_model("llama"), process_group=group)
    mamba = transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL, state_size=4))
    llama = make_model("llama")
    cases = {
        "expected one with labels": (llama, {"input_ids": batch["input_ids"]}),
        "every label is -100": (llama, {**batch, "labels": torch.full_like(batch["labels"], -100)}),
        r"batch\['input_ids'\] of rank 1 is not that of rank 0": (llama, other),
        "names, shapes or dtypes": (llama, shorter),
        "model.norm.weight of rank 1 is not that of rank 0": (seeded, batch),
        r"draws random numbers \(model.layers.0.mlp.1\)": (dropout, batch),
        "before it is wrapped": (wrapped, batch),
        "mixes tokens outside attention": (mamba, batch),
        "LlamaModel gives no logits": (transformers.LlamaModel(transformers.LlamaConfig(**SMALL)), batch),
    }
    for words, (model, given) in cases.items():
        with pytest.raises(trireme.ConfigError, match=words):
            trireme.verify(model, given, group)
    assert trireme.verify(dropout.eval(), batch, group).passed


class NoRoomForTheWhole(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if x.shape[1] == 29:
            raise MemoryError("no room for the whole")
        return self.inner(x)


def test_the_number_of_targets_that_a_trainer_gives_divides_both_losses(ranks):
    ranks.run(run_num_items, 2)


def run_num_items(group):
    batch = make_batch("plain", "")
    alone = trireme.verify(make_model("llama"), batch, group)
    of_a_trainer = trireme.verify(make_model("llama"), {**batch, "num_items_in_batch": torch.tensor(400)}, group)
    targets = int((batch["labels"][:, 1:] != -100).sum())
    assert of_a_trainer.passed and abs(of_a_trainer.loss - alone.loss * targets / 400) < 1e-5


def test_a_failure_of_rank_0_alone_reaches_every_rank(ranks):
    ranks.run(run_no_room, 2)


def run_no_room(group):
    model = make_model("llama")
    model.model.layers[1].mlp = NoRoomForTheWhole(model.model.layers[1].mlp)
    with pytest.raises(MemoryError if group.rank() == 0 else RuntimeError, match="no room" if group.rank() == 0 else "rank 0 could not"):
        trireme.verify(model, make_batch("plain", ""), group)
