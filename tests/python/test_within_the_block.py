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


def test_prompt_tuning_needs_whole_batches(ranks):
    ranks.run(run_prompt_tuning, 2)


def run_prompt_tuning(group):
    import peft
    from test_parallelize import compare
    from test_whole_batches import alone, whole

    model = peft.get_peft_model(make_model("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    with pytest.raises(trireme.ConfigError, match="prompt tuning.*whole batches"):
        with trireme.parallelize(model, group):
            pass
    batch = make_batch("right padding", "llama")
    compare(alone(model, batch), whole(model, batch, group))


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
            assert len([w for w in seen if "labels of padding" in str(w.message)]) == (told if group.rank() == 0 else 0)


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
