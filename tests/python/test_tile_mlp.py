"""trireme.tile_mlp: models in tiles of tokens against themselves: loss, every gradient, and what is in memory."""

import pytest
import torch
import trireme
from tensor_bytes import TensorBytes
from test_fused_loss import make_batch, make_model, step
from test_parallelize import compare, gradients

MODELS = {
    "Llama": ("model.layers.0.mlp", {}),
    "Gemma2": ("model.layers.0.mlp", {}),
    "Phi3": ("model.layers.0.mlp", {}),  # gate and up in one
    "Starcoder2": ("model.layers.0.mlp", dict(residual_dropout=0.0)),  # with biases
    "ModernBert": ("model.layers.0.mlp", dict(local_attention=8)),
}


@pytest.mark.parametrize(
    "family, checkpointing", [*[(family, None) for family in MODELS], ("Llama", False), ("Llama", True), ("Gemma2", False)]
)
def test_loss_and_gradients_are_those_of_the_whole(family, checkpointing):
    """checkpointing: use_reentrant of the layers' checkpoints."""
    first, changes = MODELS[family]
    model = make_model(family, changes)
    _, truth = step(model, make_batch(), 0.25)
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    for tokens_per_tile in (1, 8, 1000):
        with trireme.tile_mlp(model, tokens_per_tile=tokens_per_tile) as names:
            assert names[0] == first and len(names) == 2
            _, got = step(model, make_batch(), 0.25)
        compare(truth, got)
    mlp = model.get_submodule(first)
    assert "forward" not in mlp.__dict__ and not mlp._forward_hooks and model.training


class Mlp(torch.nn.Module):
    def __init__(self, width=8, inner=64, dropout=0.0):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.dropout = dropout
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.down(torch.nn.functional.dropout(torch.nn.functional.gelu(self.up(x)), self.dropout, self.training))


class Block(torch.nn.Module):
    """Any module of PyTorch: mixes tokens, then has an MLP."""

    def __init__(self, mlp):
        super().__init__()
        self.mix, self.mlp = torch.nn.Linear(8, 24), mlp

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, -1)
        return x + self.mlp(x + torch.nn.functional.scaled_dot_product_attention(q, k, v))


class BatchMean(torch.nn.Module):
    """Mixes tokens while it trains, as a norm over a batch does."""

    def forward(self, x):
        return x - x.mean((0, 1)) if self.training else x


EXAMPLE = {"x": torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(2))}


def test_any_module_in_fp64_is_exact_and_undone():
    torch.manual_seed(1)
    model = torch.nn.ModuleList([Block(Mlp())])[0].double()
    example = {"x": EXAMPLE["x"].double()}
    x = torch.randn(2, 29, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 29, 8, dtype=torch.float64)
    (model(x) * weight).sum().backward()
    truth = [x.grad.clone(), *gradients(model).values()]
    hooked = []
    hook = model.mlp.up.weight.register_hook(lambda gradient: hooked.append(gradient))
    for tokens_per_tile in (1, 7, 58, 100):
        model.zero_grad()
        x.grad = None
        with trireme.tile_mlp(model, tokens_per_tile=tokens_per_tile, example=example) as names:
            assert names == ["mlp"]
            (model(x) * weight).sum().backward()
            assert model(x[:, :0]).shape == (2, 0, 8)
        for ours, theirs in zip([x.grad, *gradients(model).values()], truth):
            assert (ours - theirs).abs().max() < 1e-10
        assert len(hooked) == 1 and (hooked.pop() - truth[3]).abs().max() < 1e-10  # the sum, not each tile's
    hook.remove()
    with torch.no_grad(), trireme.tile_mlp(model, tokens_per_tile=7, example=example):
        assert torch.allclose(model(x), model(x)) and not model(x).requires_grad
    assert "forward" not in model.mlp.__dict__


def test_frozen_parameters_and_a_weight_that_changes_before_backward():
    model = Block(Mlp())
    model.mlp.up.requires_grad_(False)
    with trireme.tile_mlp(model, tokens_per_tile=3, example=EXAMPLE):
        model(torch.randn(1, 8, 8)).sum().backward()
        assert model.mlp.up.weight.grad is None and model.mlp.down.weight.grad is not None
        output = model(torch.randn(1, 8, 8)).sum()
        with torch.no_grad():
            model.mlp.down.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward()


def test_half_precision_errs_at_most_twice_as_much_as_the_whole():
    torch.manual_seed(5)
    start, x = Mlp(32, 128).bfloat16(), torch.randn(1, 400, 32).bfloat16()
    weight = torch.randn(1, 400, 32).bfloat16()

    def run(mlp, x):
        x = x.detach().clone().requires_grad_()
        mlp.zero_grad()
        mlp(x).mul(weight.to(x.dtype)).sum().backward()
        return [gradient.double() for gradient in (x.grad, *gradients(mlp).values())]

    whole = run(start, x)
    with trireme.tile_mlp(start, tokens_per_tile=16, example={"x": x}):
        tiled = run(start, x)
    truth = run(start.double(), x.double())
    for ours, theirs, exact in zip(tiled, whole, truth):
        errors = [(found - exact).abs().max().item() for found in (ours, theirs)]
        assert errors[0] <= 2 * errors[1], (errors, exact.shape)


def test_no_tensor_of_tokens_by_inner_width_is_made():
    mlp, x = Mlp(8, 256), torch.randn(2, 256, 8, requires_grad=True)
    wide = 512 * 256 * 4
    with TensorBytes() as whole:
        mlp(x).sum().backward()
    with trireme.tile_mlp(mlp, tokens_per_tile=32, example=EXAMPLE), TensorBytes() as tiled:
        mlp(x).sum().backward()
    assert whole.largest == wide and whole.most_alive > 2 * wide
    assert tiled.largest == wide // 16 and tiled.most_alive < wide / 2


def test_a_checkpointed_layer_computes_its_mlp_twice_not_three_times():
    model, x = Block(Mlp()), torch.randn(1, 8, 8, requires_grad=True)
    with trireme.tile_mlp(model, tokens_per_tile=4, example=EXAMPLE):
        model.mlp.calls = 0
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert model.mlp.calls == 2 * 2  # two tiles, forward and for their gradients


def test_autocast_holds_in_backward():
    model, x = Block(Mlp()), torch.randn(1, 8, 8)
    products = []

    def run():
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().sum()
        loss.backward()
        return gradients(model)

    truth = run()
    with trireme.tile_mlp(model, tokens_per_tile=3, example=EXAMPLE):
        model.mlp.up.register_forward_hook(lambda module, given, output: products.append(output.dtype))
        got = run()
    assert set(products) == {torch.bfloat16} and len(products) == 6
    for name, gradient in got.items():
        assert (gradient - truth[name]).abs().max() < 3e-2 * truth[name].abs().max()


def test_lora_on_the_mlp_and_ddp(ranks):
    ranks.run(run_lora_and_ddp, 2)


def run_lora_and_ddp(group):
    import peft

    batch = make_batch()
    part = {name: value[group.rank() :][:1] for name, value in batch.items()}
    part["num_items_in_batch"] = (batch["labels"][:, 1:] != -100).sum() / 2  # the average of two ranks
    whole = {**batch, "num_items_in_batch": (batch["labels"][:, 1:] != -100).sum()}
    adapted = ["embed_tokens", "q_proj", "gate_proj", "down_proj"]
    config = peft.LoraConfig(r=4, target_modules=adapted, init_lora_weights=False)
    for model in (make_model("Llama", {}), peft.get_peft_model(make_model("Llama", {}), config).train()):
        _, (_, truth) = step(model, whole)
        parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        with trireme.tile_mlp(parallel, tokens_per_tile=5), trireme.fused_loss(parallel, tokens_per_tile=5):
            _, (_, found) = step(parallel, part)
        compare((0, truth), (0, {name.removeprefix("module."): gradient for name, gradient in found.items()}))


def test_fully_shard_with_checkpointing(ranks):
    ranks.run(run_fully_shard, 2)


def run_fully_shard(group):
    import peft
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    batch = make_batch()
    count = (batch["labels"][:, 1:] != -100).sum()
    mesh = DeviceMesh.from_group(group, "cpu")
    mine = {name: value[group.rank() :][:1] for name, value in batch.items()}
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    for model in (make_model("Llama", {}), peft.get_peft_model(make_model("Llama", {}), lora).train()):
        _, (_, truth) = step(model, {**batch, "num_items_in_batch": count})
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for part in (model.get_decoder().layers[0].mlp, *model.get_decoder().layers, model):
            fully_shard(part, mesh=mesh)
        with trireme.tile_mlp(model, tokens_per_tile=5), trireme.fused_loss(model, tokens_per_tile=5):
            for _ in range(2):
                _, (_, found) = step(model, {**mine, "num_items_in_batch": count / 2})
        compare((0, truth), (0, {name: gradient.full_tensor() for name, gradient in found.items()}))
    model = make_model("Llama", {})
    fully_shard(model.model.layers[1].mlp.up_proj, mesh=mesh)
    with pytest.raises(trireme.ConfigError, match="mlp.up_proj .* sharded by itself"), trireme.tile_mlp(model):
        pass


def refused():
    partitioned = Mlp()
    partitioned.up.weight.ds_id = 1
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    return {
        r"layers.0.mlp \(MixtralSparseMoeBlock\) routes tokens": (make_model("Mixtral", experts), None),
        "drops out values or mixes tokens while it trains": (Block(Mlp(dropout=0.1)), EXAMPLE),
        r"mlp \(Sequential\) drops out": (Block(torch.nn.Sequential(BatchMean(), Mlp())), EXAMPLE),
        "partitioned by DeepSpeed's ZeRO-3": (Block(partitioned), EXAMPLE),
        "found no MLP": (torch.nn.Linear(8, 8), {"input": EXAMPLE["x"]}),
        "give an example": (Block(Mlp()), None),
        "expected 3 tokens or more": (Block(Mlp()), {"x": EXAMPLE["x"][:, :2]}),
    }


def test_what_is_refused_is_named():
    for words, (model, example) in refused().items():
        with pytest.raises(trireme.ConfigError, match=words), trireme.tile_mlp(model, example=example):
            pass
        assert not any("forward" in module.__dict__ or module._forward_hooks for module in model.modules()), words
    with pytest.raises(trireme.ConfigError, match="tokens_per_tile: got 0"), trireme.tile_mlp(Block(Mlp()), tokens_per_tile=0):
        pass
    model = Block(Mlp())
    with trireme.tile_mlp(model, example=EXAMPLE):
        weight = model.mlp.up._parameters.pop("weight")
        with pytest.raises(trireme.ConfigError, match="has no parameter up.weight while it runs"):
            model(EXAMPLE["x"])
        model.mlp.up.weight = weight
