"""Ranks that share a sample hold the same weights: trireme.parallelize refuses others, at its beginning and at each call."""

import pytest
import torch
import trireme
from test_parallelize import make_batch, make_model


def test_weights_that_differ_at_the_beginning_are_named(ranks):
    ranks.run(run_different, 2)


def run_different(group):
    for whole_batches in (False, True):
        model = make_model("llama")
        named = "model.layers.1.mlp.up_proj.weight"
        with torch.no_grad():
            model.get_parameter(named)[3, 1] += group.rank()  # one value
        with pytest.raises(trireme.ConfigError, match=f"{named} of rank 1 of the group differ"):
            with trireme.parallelize(model, group, whole_batches=whole_batches):
                pass
        model = make_model("llama")
        if group.rank() == 1:
            model.extra = torch.nn.Parameter(torch.zeros(3))
        with pytest.raises(trireme.ConfigError, match="other parameters on one rank"):
            with trireme.parallelize(model, group, whole_batches=whole_batches):
                pass


def test_an_adapter_that_each_rank_draws_by_itself_is_refused(ranks):
    ranks.run(run_adapter, 2)


def run_adapter(group):
    import peft

    config = peft.LoraConfig(target_modules=["q_proj"], r=4)
    model = make_model("llama")
    torch.manual_seed(group.rank())
    model = peft.get_peft_model(model, config)
    with pytest.raises(trireme.ConfigError, match="lora_A.default.weight"):
        with trireme.parallelize(model, group):
            pass
    with trireme.parallelize(peft.get_peft_model(make_model("llama"), config), group):  # which seeds all ranks alike
        pass


def test_gradients_that_nobody_sums_are_seen_at_the_next_call(ranks):
    ranks.run(run_forgotten, 2)


def run_forgotten(group):
    for whole_batches in (False, True):
        for summed in (True, False):
            model = make_model("llama")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step():
                batch = make_batch("plain", "llama")
                if whole_batches:
                    loss = model(**batch).loss
                else:
                    part = trireme.shard(batch, group)
                    targets = part.pop("shift_labels")
                    loss = trireme.loss(model(**part).logits, targets, group)
                loss.backward()
                if summed:
                    trireme.sum_gradients(model.parameters(), group)
                optimizer.step()
                optimizer.zero_grad()

            with trireme.parallelize(model, group, whole_batches=whole_batches):
                step()
                if summed:
                    step()
                    continue
                with pytest.raises(trireme.ConfigError, match="were the same and no longer are.*sum_gradients"):
                    step()


def test_a_document_beyond_the_positions_is_told_once(ranks):
    ranks.run(run_beyond, 2)


def run_beyond(group):
    import warnings

    model = make_model("llama")
    batch = make_batch("plain", "llama")
    tokens = batch["input_ids"].shape[1]
    yarn, linear = {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}
    cases = [(tokens, {}, 0), (tokens - 1, {}, 1), (tokens // 2, yarn, 0), (tokens // 5, yarn, 1), (4, linear, 0)]
    cases += [(tokens // 5, dict(linear, original_max_position_embeddings=tokens // 5), 1)]
    for positions, rope, told in cases:
        model.config.max_position_embeddings = positions
        model.config.rope_parameters = {"rope_theta": 10000.0, "rope_type": "default", **rope}
        with trireme.parallelize(model, group, whole_batches=True), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                model(**batch)
        assert len([w for w in seen if f"reaches position {tokens - 1}" in str(w.message)]) == told
