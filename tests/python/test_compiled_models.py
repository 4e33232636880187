"""torch.compile of a model, or of its layers, under trireme.parallelize: what the model gives alone, uncompiled."""

import contextlib

import pytest
import torch
import trireme
from test_parallelize import alone as alone_on_logits
from test_parallelize import compare, make_batch, make_model, shared
from test_whole_batches import alone, whole
from trireme.batch import gather_with_gradient

BACKENDS = ["eager", "aot_eager"]  # what Dynamo captures, and autograd of it; inductor compiles the same graphs for minutes
# What each is given: with Llama all, with the others so that any two of family, batch and call meet.
GIVEN = {
    "llama": [("plain", "whole"), ("plain", "shards"), ("packed", "whole"), ("packed", "shards")],
    "gemma3": [("plain", "whole"), ("packed", "shards")],
    "qwen3_moe": [("packed", "whole"), ("plain", "shards")],
}
# In the gate, one kind of batch with the others: the second call of a kind compiles hardly anything.
FEWER = {**GIVEN, "gemma3": [("plain", "whole"), ("plain", "shards")], "qwen3_moe": [("packed", "whole"), ("packed", "shards")]}


def whole_model(model, backend):
    model.compile(backend=backend)
    return model


def layers_alone(model, backend):
    for layer in model.base_model.layers:
        layer.compile(backend=backend)
    return model


def wrapped(model, backend):
    """Another module, which names parameters otherwise."""
    return torch.compile(model, backend=backend)


HOW = [(whole_model, "aot_eager", FEWER)] + [
    pytest.param(how, backend, GIVEN, marks=pytest.mark.slow) for how in (whole_model, layers_alone, wrapped) for backend in BACKENDS
]


def without_prefix(result):
    return result[0], {name.removeprefix("_orig_mod."): gradient for name, gradient in result[1].items()}


@pytest.mark.parametrize("how, backend, of_family", HOW)
def test_a_compiled_model_equals_itself_alone(ranks, how, backend, of_family):
    ranks.run(run_compiled, 2, how, backend, of_family)


def run_compiled(group, how, backend, of_family):
    for name, given in of_family.items():
        torch.compiler.reset()
        model = how(make_model(name), backend)
        for kind, call in given:
            batch = make_batch(kind, name)
            truth_of, result_of = (alone, whole) if call == "whole" else (alone_on_logits, shared)
            compare(truth_of(make_model(name), batch), without_prefix(result_of(model, batch, group)))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 1


def test_a_block_that_is_opened_again_compiles_nothing_again(ranks):
    ranks.run(run_opened_again, 2)


def run_opened_again(group):
    """Also of two models in turn, and one within the other's block."""
    torch.compiler.reset()
    batch = make_batch("plain", "llama")
    models = [whole_model(make_model("llama"), "eager") for _ in range(2)]
    with torch.no_grad():
        models[1].lm_head.weight.mul_(0.5)
    truths = [alone(model, batch)[0] for model in models]
    counters = torch._dynamo.utils.counters

    def losses():
        found = [whole(model, batch, group)[0] for model in models]
        with contextlib.ExitStack() as blocks:
            for model in models:
                blocks.enter_context(trireme.parallelize(model, group, whole_batches=True))
            found += [model(**batch, use_cache=False).loss.item() for model in models]
        return found

    first = losses()
    assert first == pytest.approx(2 * truths, rel=5e-6)
    counters.clear()
    for _ in range(9):  # Dynamo gives up after 8
        assert losses() == pytest.approx(first, rel=1e-6)
    assert not counters["stats"]["unique_graphs"] and not counters["recompile_limit"]


def test_losses_within_a_compiled_function(ranks):
    ranks.run(run_losses, 2)


def run_losses(group):
    targets = torch.randint(0, 67, (2, 9))
    of = {
        "loss": lambda hidden, weight: trireme.loss(hidden @ weight.t(), targets, group),
        "linear_cross_entropy": lambda hidden, weight: trireme.linear_cross_entropy(hidden, weight, targets, group),
        "gather": lambda hidden, weight: gather_with_gradient(hidden @ weight.t(), group, [9, 9]).square().sum(),
    }
    for name, function in of.items():
        found = []
        for compiled in (False, True):
            torch.manual_seed(group.rank())
            hidden, weight = torch.randn(2, 9, 12, requires_grad=True), torch.randn(67, 12, requires_grad=True)
            torch.compiler.reset()
            value = (torch.compile(function, backend="aot_eager") if compiled else function)(hidden, weight)
            value.backward()
            found.append((value.detach(), hidden.grad, weight.grad))
        for plain, got in zip(*found):
            assert plain.abs().max() > 0 and (got - plain).abs().max() <= 1e-5 * plain.abs().max(), name


def test_checkpointed_layers_and_helpers(ranks):
    ranks.run(run_with_helpers, 2)


def run_with_helpers(group):
    batch = make_batch("packed", "llama")
    truth = alone(make_model("llama"), batch)
    torch.compiler.reset()
    model = make_model("llama")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compare(truth, whole(whole_model(model, "aot_eager"), batch, group))
    torch.compiler.reset()
    model = make_model("llama")
    with trireme.tile_mlp(model, tokens_per_tile=8):
        compare(truth, whole(whole_model(model, "aot_eager"), batch, group))
    torch.compiler.reset()
    model = layers_alone(make_model("llama"), "aot_eager")
    with trireme.fused_loss(model), trireme.tile_mlp(model, tokens_per_tile=8):
        compare(truth, whole(model, batch, group))


def test_the_fused_loss_of_a_model_that_is_compiled_whole_is_refused():
    for compiled in (whole_model, wrapped):
        with pytest.raises(trireme.ConfigError, match="compile its layers alone"):
            with trireme.fused_loss(compiled(make_model("llama"), "eager")):
                pass
    model = make_model("llama")
    with trireme.fused_loss(model), pytest.raises(Exception, match="compile its layers alone"):
        whole_model(model, "eager")(**make_batch("plain", "llama"))
