"""trireme.ulysses_attention over gloo ranks against torch's SDPA of the whole sequence in fp64: output, every gradient."""

import dataclasses
from typing import Optional

import pytest
import torch
import torch.distributed as dist
import trireme
from rank_pool import forks
from trireme import _operators

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}  # of a tensor's largest entry


@dataclasses.dataclass
class Case:
    tokens: int
    heads: int = 4
    kv_heads: int = 2
    width: int = 8
    batch: int = 1
    ring: int = 1
    lengths: Optional[list] = None  # of each rank; None: as trireme.shard cuts
    documents: object = None  # cu_seqlens
    window: Optional[int] = None
    causal: bool = True
    scale: Optional[float] = None
    softcap: Optional[float] = None
    dtype: torch.dtype = torch.float32
    sinks: Optional[torch.dtype] = None  # of sinks; None: without


def visible(case):
    """[B, S, S], from the words of ulysses_attention's docstring."""
    position = torch.arange(case.tokens)
    query, key = position[:, None], position[None, :]
    seen = torch.ones(case.batch, case.tokens, case.tokens, dtype=torch.bool)
    if case.causal:
        seen &= key <= query
    if case.window is not None:
        seen &= (query - key).abs() < case.window
    if case.documents is not None:
        each = case.documents if isinstance(case.documents[0], list) else [case.documents] * case.batch
        for sample, borders in enumerate(each):
            document = torch.bucketize(position, torch.tensor(borders), right=True)
            seen[sample] &= document[:, None] == document[None, :]
    return seen


def oracle(case, d_o, *inputs):
    """Sinks are one more column of scores, which the softmax sees and the values do not."""
    q, k, v, *sinks = inputs = [x.double().detach().requires_grad_() for x in inputs]
    k, v = (x.repeat_interleave(case.heads // case.kv_heads, 2) for x in (k, v))
    if sinks or case.softcap:
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (case.scale or case.width**-0.5)
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        scores = scores.masked_fill(~visible(case)[:, None], -torch.inf)
        columns = [column[None, :, None, None].expand(case.batch, -1, case.tokens, 1) for column in sinks]
        weights = torch.cat([scores, *columns], dim=-1).softmax(-1)[..., : case.tokens]
        o = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    else:
        q_, k, v, seen = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), visible(case)[:, None]
        o = torch.nn.functional.scaled_dot_product_attention(q_, k, v, attn_mask=seen, scale=case.scale).transpose(1, 2)
    return [o.detach(), *torch.autograd.grad(o, inputs, d_o.double())]


def spans_of(case, shared):
    if case.lengths is None:
        return shared.spans(case.tokens)
    begin = sum(case.lengths[: shared.rank])
    return [(begin, begin + case.lengths[shared.rank])]


def check(group, case, give_lengths=False):
    torch.manual_seed(1)
    shape = (case.batch, case.tokens)
    q, d_o = torch.randn(2, *shape, case.heads, case.width).to(case.dtype)
    k, v = torch.randn(2, *shape, case.kv_heads, case.width).to(case.dtype)
    sinks = [] if case.sinks is None else [torch.linspace(2, -1, case.heads).to(case.sinks).requires_grad_()]
    shared = trireme.SequenceGroup(group, ring=case.ring) if case.ring > 1 else group
    of_ranks = trireme.SequenceGroup(group) if case.ring == 1 else shared
    spans = spans_of(case, of_ranks)

    def mine(x):
        return torch.cat([x[:, begin:end] for begin, end in spans] or [x[:, :0]], dim=1)

    shards = [mine(x).detach().requires_grad_() for x in (q, k, v)]
    documents = case.documents
    if documents is not None:
        documents = [torch.tensor(d) for d in documents] if isinstance(documents[0], list) else torch.tensor(documents)
    lengths = None
    if give_lengths:
        lengths = case.lengths or of_ranks.lengths(case.tokens)
    options = dict(lengths=lengths, cu_seqlens=documents, window=case.window, causal=case.causal, scale=case.scale)
    options["softcap"] = case.softcap
    o = trireme.ulysses_attention(*shards, shared, **options, sinks=sinks[0] if sinks else None)
    got = [o.detach(), *torch.autograd.grad(o, shards + sinks, mine(d_o))]
    truths = oracle(case, d_o, q, k, v, *sinks)
    if sinks:
        dist.all_reduce(got[-1], group=group)  # a rank's is its share
        assert truths[-1].abs().max() > 0.1
    for name, part, truth in zip(("o", "dq", "dk", "dv", "dsinks"), got, truths):
        assert part.dtype == (case.sinks if name == "dsinks" else case.dtype), name
        error = part.double() - (truth if name == "dsinks" else mine(truth))
        error = error.abs().max().item() if part.numel() else 0
        assert error <= TOLERANCE[case.dtype] * max(1, truth.abs().max().item()), f"{name}: {error}"


CASES = {
    "plain": Case(24),
    "lengths that do not divide": Case(29),
    "heads that do not divide": Case(26, heads=5, kv_heads=5),
    "uneven heads share key/value heads": Case(23, heads=6, kv_heads=3, batch=2),
    "one key/value head": Case(23, heads=4, kv_heads=1),
    "seven heads, full attention": Case(31, heads=7, kv_heads=7, causal=False),
    "batch": Case(17, batch=3),
    "documents": Case(40, documents=[0, 3, 4, 21, 40]),
    "documents of each sample": Case(30, batch=2, documents=[[0, 11, 30], [0, 1, 2, 30]]),
    "window": Case(37, window=5),
    "window of one": Case(13, window=1),
    "window across documents, full": Case(37, window=4, causal=False, documents=[0, 18, 37]),
    "scale": Case(19, scale=0.7),
    "a cap": Case(33, softcap=0.7),
    "a cap, window, documents": Case(40, softcap=2.0, window=6, documents=[0, 3, 4, 21, 40]),
    "a cap, bf16": Case(64, width=32, softcap=1.0, dtype=torch.bfloat16),
    "a cap, fp64": Case(21, softcap=1.0, dtype=torch.float64),
    "wide heads": Case(200, width=80, heads=4, kv_heads=4),
    "fp64": Case(21, dtype=torch.float64),
    "bf16": Case(64, width=32, dtype=torch.bfloat16),
    "bf16, sinks in fp32": Case(64, width=32, dtype=torch.bfloat16, sinks=torch.float32),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_equals_sdpa_of_the_whole_sequence(ranks, count):
    ranks.run(run_cases, count)


def run_cases(group):
    for name, case in CASES.items():
        for give_lengths, with_sinks in ((False, False), (True, False), (True, True)):
            sinks = (case.sinks or case.dtype) if with_sinks else None
            try:
                check(group, dataclasses.replace(case, sinks=sinks), give_lengths)
            except Exception as error:
                raise AssertionError(name) from error


def test_shards_of_any_lengths(ranks):
    ranks.run(run_lengths, 3)


def run_lengths(group):
    for lengths in ([1, 20, 9], [30, 0, 0], [0, 0, 30], [15, 15, 0], [10, 10, 10]):
        for sinks in (None, torch.float32):
            check(group, Case(30, heads=5, kv_heads=5, lengths=lengths, documents=[0, 7, 30], window=6, sinks=sinks))
    check(group, Case(1100, heads=3, kv_heads=1, lengths=[0, 1100, 0], sinks=torch.float32))  # more rows than are scaled at once


@pytest.mark.parametrize("count, ring", [(2, 2), (3, 3), (4, 2), (4, 4)])
def test_more_ranks_than_heads(ranks, count, ring):
    ranks.run(run_ring, count, ring)


def run_ring(group, ring):
    heads = group.size() // ring
    for case in (
        Case(41, heads=heads, kv_heads=1, ring=ring),
        Case(41, heads=2, kv_heads=2, ring=ring, documents=[0, 5, 22, 41], window=9),
        Case(41, heads=2, kv_heads=1, ring=ring, causal=False, batch=2),
        Case(41, heads=heads, kv_heads=1, ring=ring, sinks=torch.float32),
        Case(41, heads=2, kv_heads=2, ring=ring, documents=[0, 5, 22, 41], window=9, sinks=torch.float64, dtype=torch.float64),
        Case(5, heads=2, kv_heads=2, ring=ring),
    ):
        check(group, case)


def test_under_torch_compile(ranks):
    ranks.run(run_compiled, 2)


def run_compiled(group):
    for sinks in (None, torch.tensor([1.0, -1.0, 0.5, 2.0], requires_grad=True)):
        check_compiled(group, sinks)


def check_compiled(group, sinks):
    torch.manual_seed(2)
    shared = trireme.SequenceGroup(group)
    tokens = 15
    whole = torch.randn(1, tokens, 4, 8)
    begin, end = shared.spans(tokens)[0]
    lengths = shared.lengths(tokens)

    def step(x):
        return trireme.ulysses_attention(2 * x, x[:, :, :2], x[:, :, 2:], shared, lengths=lengths, window=6, sinks=sinks).sin()

    results = []
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        x = whole[:, begin:end].clone().requires_grad_()
        y = function(x)
        inputs = [x] if sinks is None else [x, sinks]
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), inputs)))
    for eager, compiled in zip(*results):
        torch.testing.assert_close(eager, compiled)


def test_operators_pass_torchs_own_checks(ranks):
    ranks.run(run_opcheck, 1)


def run_opcheck(_group):
    _operators.load()
    q, k = torch.randn(1, 6, 4, 8, requires_grad=True), torch.randn(1, 6, 2, 8, requires_grad=True)
    for sinks, softcap in ((None, 0.0), (torch.randn(4, requires_grad=True), 1.5)):
        torch.library.opcheck(
            torch.ops.trireme.ulysses_forward.default,
            (q, k, k.detach().clone().requires_grad_(), sinks, "", 1, [6], [torch.tensor([0, 2, 6])], 3, True, 0.3, softcap),
        )


def compile_first():
    x = torch.randn(1, 6, 2, 8, requires_grad=True)

    def step(x):
        return trireme.ulysses_attention(x, x, x).sin()

    assert not _operators.load.cache_info().currsize
    gradients = [torch.autograd.grad(call(x).sum(), x)[0] for call in (torch.compile(step, backend="aot_eager", fullgraph=True), step)]
    torch.testing.assert_close(*gradients)


def test_operators_are_loaded_where_a_compiled_call_is_the_first():
    process = forks().Process(target=compile_first)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_sink_of_no_weight_is_none(ranks):
    ranks.run(run_weightless_sinks, 2)


def run_weightless_sinks(group):
    q, k = torch.randn(1, 7, 3, 8), torch.randn(1, 7, 3, 8)
    sinks = torch.full((3,), -torch.inf, requires_grad=True)
    o = trireme.ulysses_attention(q, k, k, group, sinks=sinks)
    assert torch.equal(o, trireme.ulysses_attention(q, k, k, group))
    o.sum().backward()
    assert torch.equal(sinks.grad, torch.zeros(3))


def test_what_is_refused_is_named(ranks):
    ranks.run(run_refusals, 2)


def run_refusals(group):
    def refused(words, *, q=(1, 4, 4, 8), k=(1, 4, 2, 8), dtype=torch.float32, of_keys=torch.float32, to=group, **options):
        k_shard = torch.randn(k).to(of_keys)
        with pytest.raises(trireme.ConfigError, match=words):
            trireme.ulysses_attention(torch.randn(q).to(dtype), k_shard, k_shard, to, **options)

    refused("divide the query heads", k=(1, 4, 3, 8))
    refused("expected q \\[B, s, H, D\\]", k=(1, 5, 2, 8))
    refused("one floating dtype", dtype=torch.float64)
    refused("a width of 1 or more", q=(1, 4, 4, 0), k=(1, 4, 2, 0))
    refused("window: got 0", window=0)
    refused("scale: got nan", scale=float("nan"))
    refused("softcap: got -1", softcap=-1)
    refused("one of each query head", sinks=torch.zeros(2))
    refused("torch.float32 on cpu", sinks=torch.zeros(4, dtype=torch.float64))
    refused("at most one rank a head.*ring=R\\) with R of 2", q=(1, 4, 1, 8), k=(1, 4, 1, 8))
    refused("holds 4 tokens", lengths=[5, 3])
    refused("expected to begin with 0", cu_seqlens=[1, 8])
    refused("got documents of 9 tokens in a sample of 8", cu_seqlens=[0, 9])
    rank = group.rank()
    refused("has batch [12], rank [01] another", q=(1 + rank, 4, 4, 8), k=(1 + rank, 4, 2, 8))
    mixed = (torch.float32, torch.float64)[rank]
    refused("has dtype torch.float(32|64), rank", dtype=mixed, of_keys=mixed)
    refused("has window [56], causal (True|False), rank", window=5 + rank, causal=rank == 0)
    refused(r"has cu_seqlens \[\[0, [34], 8\]\], rank", cu_seqlens=[0, 3 + rank, 8])
    ring = trireme.SequenceGroup(group, ring=2)
    size = 3 + 2 * group.rank()
    refused("as trireme.shard cuts it", q=(1, size, 4, 8), k=(1, size, 2, 8), to=ring)
    with pytest.raises(trireme.ConfigError, match="divisor of its size"):
        trireme.SequenceGroup(group, ring=3)


def test_leaves_the_callers_group_usable_and_makes_no_other(ranks):
    ranks.run(run_groups, 2)


def run_groups(group):
    before = set(dist.distributed_c10d._world.pg_map)
    check(group, Case(11))
    check(group, Case(11, ring=2))
    assert set(dist.distributed_c10d._world.pg_map) == before
    total = torch.ones(3)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [group.size()] * 3
