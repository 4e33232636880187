"""trireme.parallelize of models with Gated DeltaNet (Qwen3-Next, Qwen3.5) over gloo ranks against themselves alone."""

import contextlib
import sys
import unittest.mock

import pytest
import torch
import trireme
from test_parallelize import SMALL, alone, by_turns, compare, compare_checkpointed, draw_weights, gradients, make_batch, shared

DELTA = dict(num_hidden_layers=4, linear_key_head_dim=8, linear_value_head_dim=4, linear_num_key_heads=2, linear_num_value_heads=4)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32)
MODELS = {
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", DELTA),
    # On two ranks a key head is shared; on four a rank has no head.
    "qwen3_5, three value heads": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", dict(DELTA, linear_num_key_heads=1, linear_num_value_heads=3)),
    "qwen3_5, three key heads": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", dict(DELTA, linear_num_key_heads=3, linear_num_value_heads=6)),
    "qwen3_5, no attention": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", dict(DELTA, num_hidden_layers=2, layer_types=["linear_attention"] * 2)),
    "qwen3_5, of images too": ("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", dict(text_config={**SMALL, **DELTA}, vision_config=VISION)),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", {**DELTA, **EXPERTS}),
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**DELTA, **EXPERTS}),
}


def make_model(name, dtype=torch.float64):
    import transformers

    kind, config, sizes = MODELS[name]
    config = getattr(transformers, config)(**(sizes if "text_config" in sizes else {**SMALL, **sizes}))
    model = getattr(transformers, kind)._from_config(config, attn_implementation="eager", experts_implementation="eager").train().to(dtype)
    torch.manual_seed(3)
    draw_weights(model, 0.1 if dtype == torch.float32 else 0.2)
    return model


@contextlib.contextmanager
def in_fp64(model):
    """The delta rule token by token; transformers' own computes in fp32, whose rounding it amplifies."""

    def rule(query, key, value, g, beta, use_qk_l2norm_in_kernel, **_more):
        assert use_qk_l2norm_in_kernel
        dtype = value.dtype
        query, key, value, g, beta = (x.double() for x in (query, key, value, g, beta))
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
        group = value.shape[2] // key.shape[2]
        q, k = (x.repeat_interleave(group, dim=2) for x in (q * key.shape[-1] ** -0.5, k))
        state, outputs = value.new_zeros(*value[:, 0].shape[:2], key.shape[-1], value.shape[-1]), []
        for t in range(value.shape[1]):
            state = state * g[:, t, :, None, None].exp()
            change = beta[:, t, :, None] * (value[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return torch.stack(outputs, dim=1).to(dtype), None

    layer = next(module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    with unittest.mock.patch.object(sys.modules[type(layer).__module__], "torch_chunk_gated_delta_rule", rule):
        yield


@contextlib.contextmanager
def transformers_rule_in_fp64(model):
    """Its code with every float32 read as float64. In fp32 sums of tokens that cancel, as of dt_bias, tell one order from another."""

    class Torch:
        def __getattr__(self, name):
            return torch.float64 if name == "float32" else getattr(torch, name)

    layer = next(module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    functions = sys.modules[type(layer).__module__]
    with unittest.mock.patch.object(functions, "torch", Torch()):
        yield


def each_document_alone(model, batch):
    """Without flash-linear-attention transformers lets packed documents see each other."""
    if "position_ids" not in batch:
        return alone(model, batch)
    model.zero_grad(set_to_none=True)
    lengths = [len(part) for part in batch["position_ids"][0].tensor_split((batch["position_ids"][0] == 0).nonzero().flatten()[1:])]
    logits = torch.cat([model(input_ids=ids, use_cache=False).logits for ids in batch["input_ids"].split(lengths, dim=1)], dim=1)
    targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    return loss.item(), gradients(model)


@pytest.mark.parametrize("count, ring", [(1, 1), (2, 1), (4, 2)])
def test_each_family_equals_itself_alone(ranks, count, ring):
    ranks.run(run_families, count, ring)


def run_families(group, ring):
    """Padding on the left is below: the attention of transformers has no fp64 for rows without a key."""
    for name in MODELS:
        model = make_model(name)
        batches = {kind: make_batch(kind, name) for kind in ("plain", "packed", "right padding")}
        with in_fp64(model):
            truths = by_turns(group, lambda batch: each_document_alone(model, batch), batches)
        for kind, batch in batches.items():
            try:
                compare(truths[kind], shared(model, batch, group, ring))
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error


def test_the_convolution_gets_rows_that_lie_one_behind_the_other(ranks):
    ranks.run(run_rows, 2)


def run_rows(group):
    """As causal-conv1d demands on a GPU: channels side by side, and no more between two tokens than a token has."""
    import transformers.models.qwen3_5.modeling_qwen3_5 as functions

    convolve = functions.causal_conv1d_fn

    def strict(x, *arguments, **keywords):
        assert x.stride(1) == 1 and (x.stride(2) == x.shape[1] or x.shape[2] == 1), (x.shape, x.stride())
        return convolve(x, *arguments, **keywords)

    with unittest.mock.patch.object(functions, "causal_conv1d_fn", strict):
        model = make_model("qwen3_5, three value heads", torch.float32)
        for kind in ("plain", "packed"):
            shared(model, make_batch(kind, ""), group)


def test_the_delta_rule_of_transformers(ranks):
    ranks.run(run_rule_of_transformers, 2)


def run_rule_of_transformers(group):
    model = make_model("qwen3_5")
    for kind in ("plain", "packed", "right padding", "left padding"):
        batch = make_batch(kind, "")
        with transformers_rule_in_fp64(model):
            compare(each_document_alone(model, batch), shared(model, batch, group))


def test_checkpointed_layers_find_their_own_documents_again(ranks):
    ranks.run(run_checkpointing, 2)


def run_checkpointing(group):
    """Two batches of other documents go forward before either goes back."""
    model = make_model("qwen3_5")
    batches = [make_batch("packed", ""), make_batch("plain", "")]
    with transformers_rule_in_fp64(model):
        truths = [each_document_alone(model, batch) for batch in batches]
        for reentrant in (False, True):
            compare_checkpointed(model, batches, truths, group, reentrant)


def test_whole_batches_with_the_memory_helpers_around(ranks):
    ranks.run(run_whole_batches, 2)


def run_whole_batches(group):
    model, batch = make_model("qwen3_5"), make_batch("packed", "")
    with transformers_rule_in_fp64(model):
        truth = each_document_alone(model, batch)
        model.zero_grad(set_to_none=True)
        with trireme.fused_loss(model), trireme.tile_mlp(model, tokens_per_tile=5):
            with trireme.parallelize(model, group, whole_batches=True):
                loss = model(**batch).loss
                loss.backward()
    trireme.sum_gradients(model.parameters(), group)
    compare(truth, (loss.item(), gradients(model)))
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_adapters_alone_are_trained(ranks):
    ranks.run(run_adapters, 4)


def run_adapters(group):
    """Rank 0 has none of the three heads, and the same collectives as the others."""
    import peft

    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, target_modules=["in_proj_qkv", "in_proj_a", "out_proj", "q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(make_model("qwen3_5, three value heads"), config).train()
    batch = make_batch("plain", "")
    with in_fp64(model):
        truth = alone(model, batch)
        assert truth[1] and all("lora" in name for name in truth[1])
    compare(truth, shared(model, batch, group))


def test_parameters_of_the_recurrence_alone_are_trained(ranks):
    ranks.run(run_recurrence_alone, 4)


def run_recurrence_alone(group):
    """Rank 0, which has no head, reads none of them."""
    model, batch = make_model("qwen3_5, three value heads"), make_batch("plain", "")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("model.layers.0.") and name.endswith(("A_log", "dt_bias", "conv1d.weight"))
    with in_fp64(model):
        truth = alone(model, batch)
        assert len(truth[1]) == 3
    compare(truth, shared(model, batch, group))


def test_what_would_be_passed_over_is_refused(ranks):
    ranks.run(run_passed_over, 1)


def run_passed_over(group):
    class Doubled(type(make_model("qwen3_5").model.layers[0].linear_attn)):
        def forward(self, *arguments, **keywords):
            return 2 * super().forward(*arguments, **keywords)

    of_a_class, of_one = make_model("qwen3_5"), make_model("qwen3_5")
    of_a_class.model.layers[0].linear_attn.__class__ = Doubled
    layer = of_one.model.layers[1].linear_attn
    own = layer.forward
    layer.forward = lambda *arguments, **keywords: 2 * own(*arguments, **keywords)
    for number, model in enumerate((of_a_class, of_one)):
        with pytest.raises(trireme.ConfigError, match=rf"layers.{number}.linear_attn .* has a forward of test_delta_nets"):
            with trireme.parallelize(model, group):
                pass
    with pytest.raises(trireme.ConfigError, match="packed documents, which transformers alone lets see each other"):
        trireme.verify(make_model("qwen3_5"), make_batch("packed", ""), group)
    assert trireme.verify(make_model("qwen3_5", torch.float32), make_batch("plain", ""), group)


def test_a_layer_that_is_called_by_itself_is_refused(ranks):
    ranks.run(run_alone_called, 1)


def run_alone_called(group):
    model = make_model("qwen3_5")
    with trireme.parallelize(model, group):
        with pytest.raises(trireme.ConfigError, match="called by itself"):
            model.model.layers[0].linear_attn(torch.zeros(1, 3, 32))


def test_functions_that_took_the_place_of_plain_ones_stay(ranks):
    ranks.run(run_others_functions, 2)


def run_others_functions(group):
    """As those of flash-linear-attention and causal-conv1d: each document by itself, key heads that rank 1 has some values of."""
    import transformers.models.qwen3_5.modeling_qwen3_5 as functions

    model, batch = make_model("qwen3_5, three value heads"), make_batch("packed", "")
    seen = []

    def convolve(x, *arguments, **keywords):
        seen.append(x.shape[-1])
        return convolution(x, *arguments, **keywords)

    convolution = functions.causal_conv1d_fn
    with in_fp64(model):
        truth = each_document_alone(model, batch)
        with unittest.mock.patch.object(functions, "causal_conv1d_fn", convolve):
            compare(truth, shared(model, batch, group))
    borders = (batch["position_ids"][0] == 0).nonzero().flatten().tolist() + [batch["position_ids"].shape[1]]
    lengths = [end - begin for begin, end in zip(borders, borders[1:])]
    assert len(lengths) > 1 and seen and seen == lengths * (len(seen) // len(lengths))


def test_a_kernel_of_another_package_gets_no_more_values_than_it_counts(ranks):
    ranks.run(run_many_values, 2)


def run_many_values(group):
    import transformers.models.qwen3_5.modeling_qwen3_5 as functions
    import trireme.gated_delta_net as shares

    model, batch = make_model("qwen3_5, no attention"), make_batch("plain", "")
    values = batch["input_ids"].numel() * 2 * 8  # of a rank: value heads, and the wider of keys and values
    for most, calls in ((values + 1, 2), (values, 0)):
        with in_fp64(model), unittest.mock.patch.object(shares, "_MOST_OF_KERNEL", most):
            truth = alone(model, batch)
            counted = unittest.mock.Mock(wraps=functions.torch_chunk_gated_delta_rule)
            with unittest.mock.patch.object(functions, "torch_chunk_gated_delta_rule", counted):
                compare(truth, shared(model, batch, group))
        assert counted.call_count == calls


def test_all_documents_go_through_one_call_of_each_function(ranks):
    ranks.run(run_one_call, 1)


def run_one_call(group):
    import trireme.gated_delta_net as shares

    model, batch = make_model("qwen3_5, no attention"), make_batch("packed", "")
    with contextlib.ExitStack() as patches:
        calls = [
            patches.enter_context(unittest.mock.patch.object(shares, name, wraps=getattr(shares, name))) for name in ("gated_delta_rule", "causal_convolution")
        ]
        shared(model, batch, group)
    assert [call.call_count for call in calls] == [2, 2]


def documents_of(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("columns", [5, 1 << 14])  # one block, and several
@pytest.mark.parametrize("lengths", [[1], [2, 1, 1, 3, 1], [4, 5, 30, 1, 1, 2, 90], [133]])
def test_the_convolution_is_a_filter_over_each_document(lengths, columns):
    from trireme.causal_convolution import causal_convolution

    torch.manual_seed(1)
    tokens = sum(lengths)
    row = torch.randn(2, tokens, columns + 3, dtype=torch.float64)
    x, weight = row[..., 1 : 1 + columns].requires_grad_(), torch.randn(columns, 4, dtype=torch.float64, requires_grad=True)
    d_y = torch.randn(2, tokens, columns, dtype=torch.float64)

    def of_document(x_BtC):
        padded = torch.nn.functional.pad(x_BtC, (0, 0, 3, 0))  # torch's conv1d of as many groups takes half a minute
        return torch.nn.functional.silu(sum(padded[:, k : k + x_BtC.shape[1]] * weight[:, k] for k in range(4)))

    # The second sample is one document.
    alone = [torch.cat([of_document(document) for document in x[:1].split(lengths, dim=1)], dim=1), of_document(x[1:])]
    expected, got = torch.cat(alone), causal_convolution(x, weight, [documents_of(*lengths), documents_of(tokens)])
    results = zip((got, *torch.autograd.grad(got, (x, weight), d_y)), (expected, *torch.autograd.grad(expected, (x, weight), d_y)))
    for value, truth in results:
        torch.testing.assert_close(value, truth, rtol=0, atol=1e-12)


def test_the_convolution_of_a_document_does_not_read_the_others():
    from trireme.causal_convolution import causal_convolution

    torch.manual_seed(2)
    x, weight, lengths = torch.randn(1, 60, 8, dtype=torch.bfloat16), torch.randn(8, 4, dtype=torch.bfloat16), [7, 1, 2, 50]
    whole, others = causal_convolution(x, weight, [documents_of(*lengths)]), x.clone()
    others[:, :10] = float("nan")
    assert torch.equal(causal_convolution(others, weight, [documents_of(*lengths)])[:, 10:], whole[:, 10:])
    # Sums in fp32: no further from the truth than a rounding.
    truth = causal_convolution(x.double(), weight.double(), [documents_of(*lengths)])
    assert (whole - truth).abs().max() <= 2**-8 * truth.abs().max()


def test_the_operator_is_the_rule_token_by_token():
    from trireme.delta_rule import gated_delta_rule

    torch.manual_seed(3)
    lengths, keys, values = [70, 1, 64, 15], 2, 3
    q, k = (torch.randn(1, 150, keys, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 150, values, 4, dtype=torch.float64, requires_grad=True)
    decay = (-torch.rand(1, 150, values)).requires_grad_()  # fp32, as the model's is
    beta = torch.rand(1, 150, values, dtype=torch.float64, requires_grad=True)
    leaves, key_of_value = (q, k, v, decay, beta), [0, 1, 1]
    d_o = torch.randn_like(v)
    o = gated_delta_rule(*leaves, key_of_value, [documents_of(*lengths)])

    def token_by_token(q, k, v, decay, beta):
        q, k = (x[:, :, key_of_value] / (x[:, :, key_of_value].square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        state, outputs = v.new_zeros(1, values, 8, 4), []
        for t in range(v.shape[1]):
            state = state * decay[:, t, :, None, None].double().exp()
            error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t] * 8**-0.5))
        return torch.stack(outputs, dim=1)

    truth = torch.cat([token_by_token(*document) for document in zip(*(x.split(lengths, dim=1) for x in leaves))], dim=1)
    torch.testing.assert_close(o, truth, rtol=0, atol=1e-12)
    for got, expected in zip(torch.autograd.grad(o, leaves, d_o), torch.autograd.grad(truth, leaves, d_o)):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6 if got.dtype == torch.float32 else 1e-12)
    with torch.no_grad():
        assert torch.equal(gated_delta_rule(*leaves, key_of_value, [documents_of(*lengths)]), o)
    with pytest.raises(ValueError, match="cu_seqlens"):
        gated_delta_rule(*leaves, key_of_value, [torch.tensor([3, 150])])
    with pytest.raises(RuntimeError, match="documents of 151 tokens, expected 150"):
        gated_delta_rule(*leaves, key_of_value, [documents_of(151)])
