"""trireme.shard, gather and loss over gloo ranks against the whole batch in one process."""

import warnings

import pytest
import torch
import torch.distributed as dist
import trireme


def groups(group):
    yield trireme.SequenceGroup(group)
    if group.size() % 2 == 0:
        yield trireme.SequenceGroup(group, ring=2)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_shards_are_the_batch_and_gather_is_its_inverse(ranks, count):
    ranks.run(run_round_trip, count)


def run_round_trip(group):
    for shared in groups(group):
        for tokens in (2, 13, 16):
            batch = {
                "input_ids": torch.randint(100, (2, tokens)),
                "labels": torch.randint(100, (2, tokens)),
                "embeds": torch.randn(2, tokens, 3),
                "attention_mask": torch.ones(2, tokens, dtype=torch.long),
                "name": "a batch",
                "weight": torch.tensor([1.0, 2.0]),
            }
            part = trireme.shard(batch, shared)
            assert sum(shared.lengths(tokens)) == tokens
            assert max(shared.lengths(tokens)) - min(shared.lengths(tokens)) <= (1 if shared.ring == 1 else 2)
            assert part["input_ids"].shape == (2, shared.lengths(tokens)[shared.rank])
            assert "attention_mask" not in part and "labels" not in part
            assert part["name"] == "a batch" and part["weight"] is batch["weight"]
            for name in ("input_ids", "embeds"):
                assert torch.equal(trireme.gather(part[name], shared), batch[name])
            assert torch.equal(trireme.gather(part["position_ids"], shared), torch.arange(tokens).expand(2, tokens))
            shifted = trireme.gather(part["shift_labels"], shared)
            assert torch.equal(shifted[:, :-1], batch["labels"][:, 1:]) and (shifted[:, -1] == -100).all()


def test_a_mask_with_padding_stays(ranks):
    ranks.run(run_padding, 2)


def run_padding(group):
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    part = trireme.shard({"input_ids": torch.zeros(1, 5, dtype=torch.long), "attention_mask": mask}, group)
    assert torch.equal(trireme.gather(part["attention_mask"], group), mask)


@pytest.mark.parametrize("count", [2, 4])
def test_loss_and_gradients_are_those_of_one_process(ranks, count):
    ranks.run(run_loss, count)


def run_loss(group):
    shared = trireme.SequenceGroup(group)
    tokens, vocabulary, micro_batches = 11, 17, 3
    hidden = torch.randn(micro_batches, 2, tokens, 5)
    targets = torch.randint(vocabulary, (micro_batches, 2, tokens))
    targets[:, :, 3:7] = -100  # one rank of four holds no target
    targets[1] = -100  # and one micro-batch has none
    start = torch.randn(vocabulary, 5)

    whole = start.double().requires_grad_()
    truth = torch.nn.functional.cross_entropy((hidden.double() @ whole.T).flatten(0, -2), targets.flatten())
    truth.backward()

    for averaged_over in (1, 8):
        mine = start.clone().requires_grad_()
        parts = [trireme.shard({"input_ids": t, "hidden": h, "targets": t}, shared) for h, t in zip(hidden, targets)]
        number = sum(trireme.count_targets(part["targets"], shared) for part in parts)
        assert number == (targets != -100).sum()
        total = 0
        for part in parts:
            value = trireme.loss(
                part["hidden"] @ mine.T, part["targets"], shared, num_targets=number, averaged_over=averaged_over
            )
            value.backward()
            total += value.item()
        assert abs(total - truth.item()) < 5e-6
        trireme.sum_gradients([mine], group)
        error = (mine.grad / averaged_over - whole.grad).abs().max() / whole.grad.abs().max()
        assert error < 1e-5, error

    whole_batch = trireme.shard({"input_ids": targets[0], "hidden": hidden[0]}, shared)
    value = trireme.loss(whole_batch["hidden"] @ start.T, whole_batch["input_ids"], shared)
    alone = torch.nn.functional.cross_entropy((hidden[0] @ start.T).flatten(0, -2), targets[0].flatten())
    assert abs(value.item() - alone.item()) < 5e-6
    nothing = torch.full_like(whole_batch["input_ids"], -100)
    assert trireme.loss(whole_batch["hidden"] @ start.T, nothing, shared).item() == 0
    weighted = trireme.loss(whole_batch["hidden"] @ start.T, whole_batch["input_ids"], shared, num_targets=0.5)
    assert weighted.item() == pytest.approx(alone.item() * targets[0].ne(-100).sum().item() / 0.5, rel=5e-6)


def test_an_optimizer_leaves_alone_what_no_rank_used(ranks):
    ranks.run(run_unused, 2)


def run_unused(group):
    """Experts: the first of tokens of both ranks, the second of rank 1's alone, the third of none in the second step."""
    x, of = torch.randn(2, 8, 5), torch.tensor([[0, 0, 0, 2, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 1]])

    def train(tokens, summed):
        experts = torch.nn.ParameterList(torch.linspace(-1, 1, 5) * (number + 1) for number in range(3))
        optimizer = torch.optim.AdamW(experts, lr=0.1, weight_decay=0.1)
        for step in range(2):
            optimizer.zero_grad()
            for number in of[step, tokens].unique():
                (x[step, tokens][of[step, tokens] == number] @ experts[number]).square().sum().backward()
            if summed:
                trireme.sum_gradients(experts.parameters(), group)
            optimizer.step()
        return torch.stack(list(experts)), [expert.grad is None for expert in experts]

    truth, none = train(slice(None), summed=False)
    found, none_found = train(slice(4 * group.rank(), 4 * group.rank() + 4), summed=True)
    assert none == none_found == [False, False, True]
    assert (found - truth).abs().max() < 1e-5


def test_sums_of_bf16_gradients_are_rounded_once(ranks):
    ranks.run(run_bf16_sum, 4)


def run_bf16_sum(group):
    """In bf16 neighbours of 256 are 2 apart: 256 + 1 + 1 + 1 is 256 where each sum is rounded."""
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    parameter.grad = torch.full((3,), 256.0 if group.rank() == 0 else 1.0, dtype=torch.bfloat16)
    trireme.sum_gradients([parameter], group)
    assert parameter.grad.dtype == torch.bfloat16
    assert parameter.grad.tolist() == [260.0] * 3


def test_small_gradients_are_summed_together_and_large_ones_alone(ranks):
    ranks.run(run_exchanges, 2)


def run_exchanges(group):
    kinds = [(torch.float32, (3, 5)), (torch.bfloat16, (7,)), (torch.float32, (0,)), (torch.float64, ()), (torch.float32, (600, 10_000))]
    kinds = kinds[:4] * 50 + [kinds[4]] + kinds[:4]
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for dtype, shape in kinds]
    for number, parameter in enumerate(parameters):
        parameter.grad = (torch.arange(parameter.numel()) % 1000).view_as(parameter).to(parameter.dtype).mul_(group.rank() + 1).add_(number + group.rank())
        if parameter.ndim == 2:
            parameter.grad = parameter.grad.T.contiguous().T  # of any strides
    before, exchanged = [parameter.grad for parameter in parameters], []
    all_reduce = dist.all_reduce
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lambda values, **options: (exchanged.append(values.numel()), all_reduce(values, **options)))
        trireme.sum_gradients(parameters, group)
    # Of fp32 what comes before the large one, and it; then bf16, fp64 and the rest of fp32.
    assert exchanged == [50 * 15, 6_000_000, 51 * 7, 51, 15]
    for number, (parameter, gradient) in enumerate(zip(parameters, before)):
        assert parameter.grad is gradient
        truth = 3 * (torch.arange(parameter.numel()) % 1000).double().view(parameter.shape) + 2 * number + 1
        if parameter.dtype == torch.bfloat16:
            each = [torch.arange(7).to(torch.bfloat16).mul(rank + 1).add(number + rank).double() for rank in range(2)]
            truth = sum(each).to(torch.bfloat16).double()
        assert torch.equal(gradient.double(), truth)


def test_gradients_that_were_summed_are_told(ranks):
    ranks.run(run_summed_twice, 2)


def run_summed_twice(group):
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(3)]

    def give(*values):
        for parameter, value in zip(parameters, values):
            parameter.grad = None if value is None else torch.full((3,), float(value))

    give(1 + group.rank(), 7, None)  # of a penalty every rank has the same
    trireme.sum_gradients(parameters, group)
    assert [None if p.grad is None else p.grad[0].item() for p in parameters] == [3, 14, None]
    with pytest.warns(UserWarning, match="same on all ranks.*averaged_over"):
        trireme.sum_gradients(parameters, group)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (0, float("nan"), float("inf")):
            give(value, value, None)
            trireme.sum_gradients(parameters, group)


def test_shards_of_gradients_are_summed_with_their_like(ranks):
    """FSDP 2 over data ranks, here one, and sums over the ranks that share a sample."""
    ranks.run(run_sharded_sum, 2)


def run_sharded_sum(group):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("sequence", "data"))
    layer = torch.distributed.fsdp.fully_shard(torch.nn.Linear(3, 5, bias=False), mesh=mesh["data"])
    layer(torch.full((1, 3), 1.0 + group.rank())).sum().backward()
    trireme.sum_gradients(layer.parameters(), group)
    assert layer.weight.grad.full_tensor().tolist() == [[3.0] * 3] * 5


def test_what_is_refused_is_named(ranks):
    ranks.run(run_refusals, 1)


def run_refusals(group):
    ids = torch.zeros(1, 6, dtype=torch.long)
    for words, batch in (
        ("expected a tensor 'input_ids'", {"labels": ids}),
        ("got labels", {"input_ids": ids, "labels": ids[:, 1:]}),
        ("expected one of them", {"input_ids": ids, "labels": ids, "shift_labels": ids}),
        ("got an attention_mask", {"input_ids": ids, "attention_mask": torch.ones(1, 1, 6, 6)}),
        ("expected 1 for a token and 0 for padding.*neat_packing", {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 2, 2, 2, 0]])}),
        ("values from 1 to 2", {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 2, 2, 2, 2]])}),
        (
            "restart beside an attention_mask",
            {"input_ids": ids, "attention_mask": torch.ones(1, 6), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])},
        ),
        ("its tokens along dim 1", {"input_ids": ids, "position_ids": torch.zeros(3, 1, 6)}),
    ):
        with pytest.raises(trireme.ConfigError, match=words):
            trireme.shard(batch, group)
    with pytest.raises(trireme.ConfigError, match="wants a gradient"):
        trireme.gather(torch.zeros(1, 6, requires_grad=True), group)
    for words, targets, averaged_over in (("got logits", ids[:, 1:], 1), ("of torch.int32", ids.int(), 1), ("got averaged_over=0", ids, 0)):
        with pytest.raises(trireme.ConfigError, match=words):
            trireme.loss(torch.zeros(1, 6, 3), targets, group, averaged_over=averaged_over)
