"""trireme.linear_cross_entropy against PyTorch's own cross entropy of whole logits, in fp64 and in the model's dtype."""

import importlib

import pytest
import torch
import trireme
from tensor_bytes import TensorBytes
from torch.utils._python_dispatch import TorchDispatchMode

tiles = importlib.import_module("trireme.sum_of_cross_entropy")

FORMS = [dict(), dict(softcap=1.5), dict(scale=0.3), dict(scale=2.0, softcap=3.0)]


def plain_sum(hidden, weight, targets, bias=None, softcap=None, scale=1.0):
    """The logits as a model of transformers makes them, in its dtype; the sum of their cross entropy."""
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(precise.flatten(0, -2), targets.flatten(), reduction="sum")


def leaves(*tensors):
    return [tensor.clone().requires_grad_() for tensor in tensors]


def sample(tokens=29, vocabulary=37, width=8, dtype=torch.float64, std=1.0):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, tokens, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64) * std
    bias = torch.randn(vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (2, tokens), generator=generator)
    targets[:, 3:9] = -100
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), targets


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens_per_tile", [1, 7, 1000])
def test_fp64_is_exact_for_any_tile_and_upstream_gradient(form, tokens_per_tile):
    *tensors, targets = sample()
    for upstream in (1.0, 0.25, -3.0):
        truth, got = leaves(*tensors), leaves(*tensors)
        expected = plain_sum(truth[0], truth[1], targets, truth[2], **form)
        (expected * upstream).backward()
        value = trireme.linear_cross_entropy(
            got[0], got[1], targets, trireme.SequenceGroup.alone(), bias=got[2], num_targets=1, tokens_per_tile=tokens_per_tile, **form
        )
        (value * upstream).backward()
        assert abs(value - expected) < 1e-10 * abs(expected)
        for ours, theirs in zip(got, truth):
            assert (ours.grad - theirs.grad).abs().max() < 1e-10


@pytest.mark.parametrize("count", [2, 4])
def test_the_mean_over_ranks_is_that_of_one_process(ranks, count):
    ranks.run(run_mean, count)


def run_mean(group):
    """Three micro-batches, of which one has no target; one rank of four has none at all."""
    shared = trireme.SequenceGroup(group)
    vocabulary, micro_batches = 17, 3
    hidden, targets = torch.randn(micro_batches, 2, 11, 5), torch.randint(vocabulary, (micro_batches, 2, 11))
    targets[:, :, 3:7] = -100
    targets[1] = -100
    start = torch.randn(vocabulary, 5)
    whole = start.double().requires_grad_()
    truth = plain_sum(hidden.double(), whole, targets, softcap=2.0) / (targets != -100).sum()
    truth.backward()
    for averaged_over in (1, 8):
        mine = start.clone().requires_grad_()
        parts = [trireme.shard({"input_ids": t, "hidden": h, "targets": t}, shared) for h, t in zip(hidden, targets)]
        number = sum(trireme.count_targets(part["targets"], shared) for part in parts)
        total = 0
        for part in parts:
            value = trireme.linear_cross_entropy(
                part["hidden"],
                mine,
                part["targets"],
                shared,
                softcap=2.0,
                num_targets=number,
                averaged_over=averaged_over,
                tokens_per_tile=4,
            )
            value.backward()
            total += value.item()
        assert abs(total - truth.item()) < 5e-6 * abs(truth.item())
        trireme.sum_gradients([mine], group)
        error = (mine.grad / averaged_over - whole.grad).abs().max() / whole.grad.abs().max()
        assert error < 1e-5, error
    nothing = torch.full((2, 3), -100)
    mine.grad = None
    value = trireme.linear_cross_entropy(torch.randn(2, 3, 5), mine, nothing, shared)
    value.backward()
    assert value == 0 and (mine.grad == 0).all()


def errors(sum_of, tensors, targets, dtype, upstream):
    """The largest errors of the loss and of each gradient, against fp64."""
    truth = leaves(*(tensor.to(dtype).double() for tensor in tensors))
    exact = sum_of_plain(truth, targets)
    exact.backward()
    mine = leaves(*(tensor.to(dtype) for tensor in tensors))
    value = sum_of(mine, targets)
    (value * upstream).backward()
    found = [abs(value.item() - exact.item())]
    return found + [(ours.grad.double() / upstream - theirs.grad).abs().max().item() for ours, theirs in zip(mine, truth)]


def sum_of_plain(tensors, targets):
    return plain_sum(*tensors[:2], targets, softcap=5.0)


def sum_of_tiles(tensors, targets):
    alone = trireme.SequenceGroup.alone()
    return trireme.linear_cross_entropy(*tensors[:2], targets, alone, softcap=5.0, num_targets=1, tokens_per_tile=16)


@pytest.mark.parametrize("dtype, upstream", [(torch.bfloat16, 1.0), (torch.float16, 1.0), (torch.float16, 2.0**10 / 400)])
def test_half_precision_errs_at_most_twice_as_much_as_plain(dtype, upstream):
    """The last: as a loss scale over a mean. Rounded before it, small gradients would be lost in fp16."""
    *tensors, targets = sample(tokens=200, vocabulary=1000, width=32, std=0.05 if upstream != 1 else 0.5)
    plain = errors(sum_of_plain, tensors[:2], targets, dtype, upstream)
    tiled = errors(sum_of_tiles, tensors[:2], targets, dtype, upstream)
    for ours, theirs in zip(tiled, plain):
        assert ours <= 2 * theirs, (tiled, plain)


class PlayedGpuProduct(TorchDispatchMode):
    """addmm of 16-bit factors into fp32 on a CPU, with the checks of the one for GPUs (aten/src/ATen/native/cuda/Blas.cpp)."""

    calls = 0

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        if operator is not torch.ops.aten.addmm.dtype_out:
            return operator(*arguments, **(keywords or {}))
        addend, first, second, out_dtype = arguments
        out = keywords["out"]
        assert first.dim() == second.dim() == 2 and first.shape[1] == second.shape[0]
        assert first.dtype == second.dtype and first.dtype in (torch.bfloat16, torch.float16) and out_dtype == torch.float32
        assert out.dtype == addend.dtype == out_dtype and out is addend and out.is_contiguous()
        self.calls += 1
        return out.addmm_(first.float(), second.float())


def errors_of_products(device, dtype):
    """Of a sum over two tiles, against fp64, beside what rounding each tile's product would leave."""
    generator = torch.Generator().manual_seed(5)
    factors = [torch.randn(2, 64, width, generator=generator).to(device, dtype) for width in (96, 48)]
    exact = torch.einsum("ntv,nth->vh", *(factor.double() for factor in factors))
    rounded = sum((d.double().T @ hidden.double()).to(dtype).double() for d, hidden in zip(*factors))
    total = torch.zeros(96, 48, device=device)
    for d, hidden in zip(*factors):
        tiles.add_product(total, d.T, hidden)
    return (total - exact).abs().max(), (rounded - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "played", "cuda"])
def test_the_gradient_of_the_weight_is_added_up_in_fp32_within_a_tile_too(device, dtype, monkeypatch):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    if device != "played":
        error, of_rounded = errors_of_products(device, dtype)
    else:
        monkeypatch.setattr(tiles, "has_mixed_product", lambda _device: True)
        with PlayedGpuProduct() as played:
            error, of_rounded = errors_of_products("cpu", dtype)
        assert played.calls == 2
    assert error < of_rounded / 50


def test_the_product_of_a_gpu_is_asked_for_in_every_tile(monkeypatch):
    *tensors, targets = sample(tokens=200, vocabulary=400, width=32, dtype=torch.bfloat16, std=0.5)
    expected = leaves(*tensors[:2])
    sum_of_tiles(expected, targets).backward()
    monkeypatch.setattr(tiles, "has_mixed_product", lambda device: device == "cpu")
    got = leaves(*tensors[:2])
    with PlayedGpuProduct() as played:
        sum_of_tiles(got, targets).backward()
    assert played.calls == 400 // 16
    for ours, theirs in zip(got, expected):
        assert torch.equal(ours.grad, theirs.grad)


def test_the_tile_of_a_gpu_is_that_of_1_gib_of_logits():
    assert [tiles.tile_tokens_by_rule(vocabulary, "cuda") for vocabulary in (1000, 32_000, 128_256, 256_000, 2**21)] == [
        16384, 8192, 2048, 1024, 256
    ]  # fmt: skip
    assert tiles.tile_tokens_by_rule(128_256, "cpu") == 1024


def test_autocast_is_that_of_a_linear_layer():
    *tensors, targets = sample(tokens=200, vocabulary=400, width=32, std=0.5)
    tensors = [tensor.float() for tensor in tensors[:2]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = errors(sum_of_plain, tensors, targets, torch.float32, 1.0)
        tiled = errors(sum_of_tiles, tensors, targets, torch.float32, 1.0)
    for ours, theirs in zip(tiled, plain):
        assert 1e-3 * theirs < ours <= 2 * theirs, (tiled, plain)


@pytest.mark.parametrize("frozen", [False, True])
def test_no_tensor_of_tokens_by_vocabulary_is_made(frozen):
    hidden, weight, _, targets = sample(tokens=200, vocabulary=512, dtype=torch.float32)
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_(not frozen)
    whole, tile = targets.numel() * 512 * 4, 16 * 512 * 4
    with TensorBytes() as plain:
        plain_sum(hidden, weight, targets).backward()
    assert plain.largest == whole and plain.most_alive > 2 * whole
    with TensorBytes() as tiled:
        trireme.linear_cross_entropy(hidden, weight, targets, trireme.SequenceGroup.alone(), tokens_per_tile=16).backward()
    assert tiled.largest <= max(tile, hidden.numel() * 4) and tiled.most_alive < whole / 4
    if frozen:
        with TensorBytes() as tiled:
            trireme.linear_cross_entropy(hidden, weight, targets, trireme.SequenceGroup.alone(), tokens_per_tile=1).backward()
        assert weight.grad is None and tiled.largest < weight.numel() * 4


def test_shards_of_a_parallelized_body(ranks):
    ranks.run(run_parallelized, 2)


def run_parallelized(group):
    from test_parallelize import alone, compare, gradients, make_batch, make_model

    for name, kind in (("llama", "packed"), ("qwen3", "right padding")):
        model, batch = make_model(name), make_batch(kind, name)
        truth = alone(model, batch)
        model.zero_grad(set_to_none=True)
        part = trireme.shard(batch, group)
        targets = part.pop("shift_labels")
        with trireme.parallelize(model.model, group):
            hidden = model.model(**part).last_hidden_state
            value = trireme.linear_cross_entropy(hidden, model.lm_head.weight, targets, group, tokens_per_tile=4)
            value.backward()
        trireme.sum_gradients(model.parameters(), group)
        compare(truth, (value.item(), gradients(model)))


def test_a_weight_of_fully_shard(ranks):
    ranks.run(run_fully_shard, 2)


def run_fully_shard(group):
    """The head is sharded by itself, and its weight used outside its call: as gathered, gradients averaged."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    hidden, weight, bias, targets = sample(dtype=torch.float32)
    truth = leaves(weight, bias)
    expected = plain_sum(hidden, truth[0], targets, truth[1]) / (targets != -100).sum()
    expected.backward()
    head = torch.nn.Linear(8, 37)
    head.load_state_dict({"weight": weight, "bias": bias})
    fully_shard(head, mesh=DeviceMesh.from_group(group, "cpu"))
    part = trireme.shard({"input_ids": targets, "hidden": hidden}, group)
    value = trireme.linear_cross_entropy(part["hidden"], head.weight, part["input_ids"], group, bias=head.bias, averaged_over=2)
    value.backward()
    assert abs(value - expected) < 5e-6 * expected
    for ours, theirs in zip((head.weight, head.bias), truth):
        assert (ours.grad.full_tensor() - theirs.grad).abs().max() < 1e-5 * theirs.grad.abs().max()


def test_what_is_refused_is_named():
    hidden, weight, bias, targets = sample(dtype=torch.float32)
    alone = trireme.SequenceGroup.alone()
    for words, change in (
        (r"expected \[B, s, H\]", dict(targets=targets[:, 1:])),
        ("got a bias", dict(bias=bias[1:])),
        ("expected one floating dtype, or autocast", dict(hidden=hidden.bfloat16())),
        ("softcap: got -1", dict(softcap=-1)),
        ("tokens_per_tile: got 0", dict(tokens_per_tile=0)),
    ):
        with pytest.raises(trireme.ConfigError, match=words):
            trireme.linear_cross_entropy(**{**dict(hidden=hidden, weight=weight, targets=targets, group=alone), **change})
    partitioned = torch.zeros(0)
    partitioned.ds_id = 1
    with pytest.raises(trireme.ConfigError, match="ZeRO-3 has partitioned"):
        trireme.linear_cross_entropy(hidden, partitioned, targets, alone)
