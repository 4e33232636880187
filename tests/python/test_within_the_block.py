"""What a caller may do with a model beside and within trireme.parallelize, and what would be wrong in silence and is refused."""

import pytest
import torch
import trireme
from test_parallelize import make_batch, make_model


def test_what_would_undo_the_block_within_is_refused(ranks):
    ranks.run(run_within, 2)


def run_within(group):
    import copy
    import pickle

    for whole_batches in (False, True):
        model, batch = make_model("llama"), make_batch("plain", "llama")
        given = batch if whole_batches else {name: value for name, value in trireme.shard(batch, group).items() if name != "shift_labels"}
        with trireme.parallelize(model, group, whole_batches=whole_batches):
            for copied in (copy.deepcopy, pickle.dumps):
                with pytest.raises(trireme.ConfigError, match="copied within the block"):
                    copied(model)
            with pytest.raises(trireme.ConfigError, match="in such a block already"):
                with trireme.parallelize(model, group, whole_batches=whole_batches):
                    pass
            model(**given)
            model.set_attn_implementation("sdpa")
            with pytest.raises(trireme.ConfigError, match="attention was set to 'sdpa'"):
                model(**given)
        assert model.config._attn_implementation == "eager"
        copy.deepcopy(model)


def test_labels_of_padding_are_told_once(ranks):
    ranks.run(run_labels_of_padding, 2)


def run_labels_of_padding(group):
    import warnings

    model = make_model("llama")
    for kind in ("right padding", "left padding"):
        batch = make_batch(kind, "llama")
        for labels, told in ((batch["labels"], 0), (batch["input_ids"], 1)):
            with trireme.parallelize(model, group, whole_batches=True), warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(2):
                    model(**{**batch, "labels": labels})
            # On every rank: where a warning is an error, no rank waits for one that raised.
            assert len([w for w in seen if "labels of padding" in str(w.message)]) == told


def test_what_surrounds_the_model(ranks):
    ranks.run(run_around, 2)


class WithHead(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, torch.nn.Linear(32, 7)


def run_around(group):
    model = make_model("llama")
    with pytest.raises(trireme.ConfigError, match="got head.weight, a trained parameter outside the LlamaModel"):
        with trireme.parallelize(WithHead(model.model), group, whole_batches=True):
            pass
    with trireme.parallelize(WithHead(model.model), group, whole_batches=True, averaged_over=2):
        pass
    with trireme.parallelize(model, group, whole_batches=True):
        model.resize_token_embeddings(80, mean_resizing=False)
        made = type(model)(model.config)
    assert model.config.vocab_size == 80 and model.config._attn_implementation == "eager"
    assert made.config._attn_implementation == "eager" and made(input_ids=torch.tensor([[3, 4]])).logits.shape[-1] == 80


def test_the_default_device_may_be_another(ranks):
    ranks.run(run_default_device, 2)


def run_default_device(group):
    from trireme.sequence_of_call import SequenceOfCall

    of_a_ring = trireme.SequenceGroup(group, ring=2)
    with torch.device("meta"):
        order = SequenceOfCall(of_a_ring, of_a_ring.lengths(9), [], [], False, 8, False).sample_order
    assert sorted(order.tolist()) == list(range(9))
    for ring in (1, 2):
        sequence = trireme.SequenceGroup(group, ring=ring)
        for kind in ("plain", "packed", "right padding"):
            model, batch = make_model("llama"), make_batch(kind, "llama")
            losses = []
            for device in ("cpu", "meta"):
                torch.set_default_device(device)
                try:
                    with trireme.parallelize(model, sequence, whole_batches=True):
                        losses.append(model(**batch).loss.item())
                finally:
                    torch.set_default_device(None)
            assert losses[0] == losses[1]


def test_what_a_forward_adds_to_the_loss_is_refused(ranks):
    ranks.run(run_added_to_the_loss, 2)


def run_added_to_the_loss(group):
    import transformers

    class Penalised(transformers.LlamaForCausalLM):
        in_place = False

        def forward(self, input_ids=None, attention_mask=None, position_ids=None, **more):
            out = super().forward(input_ids, attention_mask, position_ids, **more)
            if out.loss is not None:
                penalty = 1e-6 * out.logits.logsumexp(-1).square().mean()
                out.loss = out.loss.add_(penalty) if self.in_place else out.loss + penalty
            return out

    model, batch = make_model("llama"), make_batch("plain", "llama")
    model.__class__ = Penalised
    for in_place in (False, True):
        Penalised.in_place = in_place
        with trireme.parallelize(model, group, whole_batches=True), pytest.raises(trireme.ConfigError, match="or more than that"):
            model(**batch)
    with trireme.parallelize(model, group, whole_batches=True), torch.no_grad():
        model(input_ids=batch["input_ids"])


def test_an_attention_of_the_callers_is_refused(ranks):
    ranks.run(run_registered_attention, 2)


def run_registered_attention(group):
    import transformers

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def of_a_caller(*given, **more):
        return None

    transformers.AttentionInterface.register("a_callers", of_a_caller)
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = of_a_caller
    try:
        for name in ("a_callers", "sdpa"):
            model = make_model("llama")
            model.config._attn_implementation = name
            with pytest.raises(trireme.ConfigError, match=f"attention is '{name}', of test_within_the_block"):
                with trireme.parallelize(model, group):
                    pass
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = plain
        transformers.AttentionInterface._global_mapping.pop("a_callers")


def test_a_loss_that_fsdp_rounds_is_the_models(ranks):
    ranks.run(run_rounded_by_fsdp, 2)


def run_rounded_by_fsdp(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, batch = make_model("llama"), make_batch("plain", "llama")
    alone = model(**batch).loss.item()
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"), mp_policy=MixedPrecisionPolicy(output_dtype=torch.bfloat16))
    with trireme.parallelize(model, group, whole_batches=True, averaged_over=2):
        loss = model(**batch).loss
    assert loss.dtype == torch.bfloat16 and abs(loss.item() - alone) < 2**-8 * alone


def test_gradients_for_an_average_are_not_summed(ranks):
    ranks.run(run_average_and_sum, 2)


def run_average_and_sum(group):
    model, batch = make_model("llama"), make_batch("plain", "llama")
    with trireme.parallelize(model, group, whole_batches=True, averaged_over=2):
        model(**batch).loss.backward()
    with pytest.raises(trireme.ConfigError, match="sum_gradients: the model's last block had an averaged_over above 1"):
        trireme.sum_gradients(model.parameters(), group)
    model.zero_grad()
    with trireme.parallelize(model, group, whole_batches=True):
        model(**batch).loss.backward()
    trireme.sum_gradients(model.parameters(), group)
    with trireme.parallelize(model, group, averaged_over=2):  # of shards: about a router's loss, which this model has not
        pass
    trireme.sum_gradients(model.parameters(), group)


def test_attention_of_a_models_own_is_refused_by_name(ranks):
    ranks.run(run_own_attention, 2)


def run_own_attention(group):
    import transformers

    sizes = dict(vocab_size=67, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, attention_dropout=0.0, hidden_dropout=0.0)
    models = [
        transformers.FalconForCausalLM(transformers.FalconConfig(**sizes)),
        transformers.XGLMForCausalLM(
            transformers.XGLMConfig(vocab_size=67, d_model=32, ffn_dim=48, num_layers=1, attention_heads=4, attention_dropout=0.0, dropout=0.0)
        ),
    ]
    for model in models:
        with pytest.raises(trireme.ConfigError, match=f"{type(model).__name__} asks its mask for"):
            with trireme.parallelize(model, group):
                pass
