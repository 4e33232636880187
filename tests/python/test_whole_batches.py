"""trireme.parallelize(whole_batches=True): a model that is called as any loop calls it gives what it gives alone."""

import pytest
import torch
import trireme
from test_parallelize import KINDS, MODELS, by_turns, compare, documents_apart, gradients, gradients_of_all, make_batch, make_model

ROUTERS = {"mixtral": 0.7, "qwen3_moe": 0.7, "gpt_oss": 0.7}


def set_router(name, model):
    if name in ROUTERS:
        model.config.output_router_logits = True
        model.router_aux_loss_coef = ROUTERS[name]


def no_cache(model):
    return {} if "Bert" in type(model).__name__ else {"use_cache": False}  # or transformers would not see packed documents


def whole(model, batch, group, ring=1, **more):
    model.zero_grad(set_to_none=True)
    sequence = trireme.SequenceGroup(group, ring=ring)
    with trireme.parallelize(model, sequence, whole_batches=True):
        output = model(**batch, **more, **no_cache(model))
        output.loss.backward()
    return output.loss.item(), gradients_of_all(model, group)


def alone(model, batch, **more):
    model.zero_grad(set_to_none=True)
    with documents_apart(model, batch):
        output = model(**batch, **more, **no_cache(model))
    output.loss.backward()
    return output.loss.item(), gradients(model)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_loss_of_each_family_is_its_own(ranks, count):
    ranks.run(run_families, count)


def run_families(group):
    for name in MODELS:
        model = make_model(name)
        set_router(name, model)
        batches = {kind: make_batch(kind, name) for kind in KINDS if (name, kind) != ("modernbert", "packed")}
        truths = by_turns(group, lambda batch: alone(model, batch), batches)
        for kind, batch in batches.items():
            try:
                compare(truths[kind], whole(model, batch, group))
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error


def test_a_class_whose_name_tells_no_loss_predicts_the_next_token(ranks):
    ranks.run(run_gpt2, 2)


def run_gpt2(group):
    """As transformers' own default does."""
    import transformers

    sizes = dict(vocab_size=67, n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_implementation="eager")).train()
    assert model.loss_type is None
    for kind in KINDS:
        batch = make_batch(kind, "gpt2")
        compare(alone(model, batch), whole(model, batch, group))


def test_over_a_ring_with_a_divisor_that_the_caller_gives(ranks):
    ranks.run(run_ring, 4)


def run_ring(group):
    for name in ("llama", "mistral, window", "mixtral"):
        model = make_model(name)
        set_router(name, model)
        for kind in KINDS[:3]:
            batch = make_batch(kind, name)
            more = {"num_items_in_batch": torch.tensor(71)}
            compare(alone(model, batch, **more), whole(model, batch, group, ring=2, **more))


def test_shards_without_a_target(ranks):
    ranks.run(run_few_targets, 4)


def run_few_targets(group):
    model = make_model("llama")
    batch = make_batch("plain", "llama")
    batch["labels"][:, 14:] = -100
    compare(alone(model, batch), whole(model, batch, group))
    batch["labels"][:] = -100
    loss, found = whole(model, batch, group)
    assert loss == 0 and all(not gradient.any() for gradient in found.values())


def test_a_loss_of_the_caller_on_logits_of_all_tokens(ranks):
    ranks.run(run_own_loss, 3)


def run_own_loss(group):
    """Averaged gradients, as under DDP."""
    model = make_model("qwen2")
    batch = make_batch("right padding", "qwen2")
    labels = batch.pop("labels")

    def own_loss():
        model.zero_grad(set_to_none=True)
        logits = model(**batch, use_cache=False).logits
        loss = (logits.softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0] * (labels >= 0)).square().sum()
        loss.backward()
        return loss.item()

    truth = own_loss(), gradients(model)
    with trireme.parallelize(model, group, whole_batches=True, averaged_over=group.size()):
        loss = own_loss()
    averaged = gradients(model)
    for gradient in averaged.values():
        torch.distributed.all_reduce(gradient, group=group)
        gradient /= group.size()
    compare(truth, (loss, averaged))


def test_a_router_on_shards_balances_all_tokens(ranks):
    ranks.run(run_router, 2)


def run_router(group):
    for kind in KINDS:
        model = make_model("mixtral")
        set_router("mixtral", model)
        batch = make_batch(kind, "mixtral")
        truth = alone(model, batch)
        model.zero_grad(set_to_none=True)
        part = trireme.shard(batch, group)
        targets = part.pop("shift_labels")
        with trireme.parallelize(model, group):
            output = model(**part)
            loss = trireme.loss(output.logits, targets, group) + model.router_aux_loss_coef * output.aux_loss
            loss.backward()
        trireme.sum_gradients(model.parameters(), group)
        compare(truth, (loss.item(), gradients(model)))


def test_a_head_that_gives_values_of_each_token(ranks):
    ranks.run(run_fused_head, 2)


def run_fused_head(group):
    """TRL's, which SFTTrainer and DPOTrainer call."""
    from trl.trainer.utils import add_fused_lm_head

    for name in ("llama", "mixtral"):
        model = make_model(name)
        set_router(name, model)
        model.config.router_aux_loss_coef = 0.3  # by which TRL's head goes, where the model's own loss goes by its attribute
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"))
        for kind in KINDS[:3]:
            batch = make_batch(kind, name)

            def of_each_sample():
                model.zero_grad(set_to_none=True)
                output = model(**batch, fused_lm_head=True, use_cache=False)
                (output.log_probs.sum(1).square().sum() * 1e-3 + output.loss).backward()
                return output, gradients(model)

            truth, gradients_alone = of_each_sample()
            with trireme.parallelize(model, group, whole_batches=True):
                output, _ = of_each_sample()
            trireme.sum_gradients(model.parameters(), group)
            for field, value in truth.items():
                if field != "router_logits":
                    torch.testing.assert_close(output[field], value, rtol=2e-5, atol=2e-5)
            compare((truth.loss.item(), gradients_alone), (output.loss.item(), gradients(model)))


def test_what_is_wrong_is_named(ranks):
    ranks.run(run_refused, 2)


def run_refused(group):
    model = make_model("llama")
    batch = make_batch("packed", "llama")
    other = dict(batch, input_ids=batch["input_ids"].roll(1)) if group.rank() else batch
    borders = {"cu_seq_lens_q": torch.tensor([0, 3, 4, 19, 29])}
    calls = {
        "called with different batches": other,
        "called with different batches.* num_items_in_batch": dict(batch, num_items_in_batch=20 + group.rank()),
        "expected the same documents": dict(batch, **borders),
        "output_hidden_states": dict(batch, output_hidden_states=True),
        "return_dict": dict(batch, return_dict=False),
        "logits_to_keep": dict(batch, logits_to_keep=1),
        "use_cache": dict(batch, use_cache=True),
        "with values from 1 to 2": dict(batch, attention_mask=torch.tensor([[1] * 20 + [2] * 9])),
        "got attention_mask as a dict, expected a tensor": dict(batch, attention_mask={"full_attention": None}),
    }
    with trireme.parallelize(model, group, whole_batches=True):
        for words, given in calls.items():
            with pytest.raises(trireme.ConfigError, match=words):
                model(**given)
        borders["cu_seq_lens_q"] = torch.tensor([0, 3, 4, 18, 29])
        assert model(**batch, **borders).logits is None  # beside a loss
    assert "_loss_function" not in model.__dict__

    def own(logits, labels, vocab_size, **_):
        return logits.sum()

    model.loss_function = own
    with trireme.parallelize(model, group, whole_batches=True):
        with pytest.raises(trireme.ConfigError, match="loss that Trireme does not know, own"):
            model(**batch)
    assert model.loss_function is own

    with pytest.raises(trireme.ConfigError, match="averaged_over=4 with a group of 2, expected 1 to 2"):
        with trireme.parallelize(model, group, averaged_over=4):
            pass
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")
    routed = torch.nn.parallel.DistributedDataParallel(make_model("mixtral"), process_group=group)
    routed.module.config.output_router_logits = True
    with pytest.raises(trireme.ConfigError, match="a router's loss .output_router_logits., and DistributedDataParallel averages"):
        with trireme.parallelize(routed, group):
            pass
    averaged = [
        torch.nn.parallel.DistributedDataParallel(make_model("llama"), process_group=group),
        torch.distributed.fsdp.fully_shard(make_model("llama"), mesh=mesh),
    ]
    for model in averaged:
        with pytest.raises(trireme.ConfigError, match="averages gradients over 2 ranks of the group; expected averaged_over=2"):
            with trireme.parallelize(model, group, whole_batches=True):
                pass
