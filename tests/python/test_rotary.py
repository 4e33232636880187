"""Rotary embeddings that depend on the longest position: every rank has those of the whole batch, so shards equal the model alone."""

import pytest
import torch
from test_parallelize import SMALL, alone, compare, draw_weights, make_batch, shared

KINDS = ["sliding_attention", "full_attention"]
PLAIN = dict(rope_type="default", rope_theta=10000.0)
DYNAMIC = dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0)
FACTORS = dict(short_factor=[1.0] * 4, long_factor=[4.0] * 4, factor=4.0)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=20, **FACTORS)
GEMMA = dict(layer_types=KINDS, sliding_window=5, rope_parameters=dict(zip(KINDS, (PLAIN, DYNAMIC))))


# (configuration, model, options); 29 tokens go beyond 16 and 20, those on the first ranks do not.
MODELS = (
    ("Llama", "Llama", dict(max_position_embeddings=16, rope_parameters=DYNAMIC)),
    ("Phi3", "Phi3", dict(max_position_embeddings=80, original_max_position_embeddings=20, rope_parameters=LONGROPE)),
    ("Gemma3Text", "Gemma3", dict(max_position_embeddings=16, **GEMMA)),
)


def make_model(config, family, options):
    import transformers

    torch.manual_seed(3)
    model = getattr(transformers, family + "ForCausalLM")(getattr(transformers, config + "Config")(**{**SMALL, **options})).train()
    draw_weights(model, 0.3)
    return model


@pytest.mark.parametrize("count, ring", [(2, 1), (4, 2)])
def test_shards_equal_the_model_alone(ranks, count, ring):
    ranks.run(run_rotary, count, ring)


def run_rotary(group, ring):
    for one in MODELS:
        for kind in ("plain", "packed"):
            batch = make_batch(kind, "")
            compare(alone(make_model(*one), batch), shared(make_model(*one), batch, group, ring))  # such a model keeps frequencies


def test_the_longest_call_is_remembered_through_a_block(ranks):
    ranks.run(run_remembered, 2)


def run_remembered(group):
    """In Transformers dynamic NTK keeps the frequencies of the longest call, until one of fewer tokens than the model has positions: a look has fewer."""
    batch = make_batch("plain", "")
    longer = {name: torch.cat([value, value], 1) for name, value in batch.items()}
    for config, family, options in (MODELS[0], MODELS[2]):
        model = make_model(config, family, {**options, "max_position_embeddings": 29})
        first = alone(model, batch)[0]
        alone(model, longer)
        truth = alone(model, batch)
        assert abs(truth[0] - first) > 1e-4 * first
        compare(truth, shared(model, batch, group))
        assert alone(model, batch)[0] == truth[0]
