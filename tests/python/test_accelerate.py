"""trireme.hf.ParallelismConfig: loops of Accelerate over sequence and data ranks against one process on the same samples."""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import types

import accelerate_ranks
import pytest
import torch
import trireme
import trireme.hf
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils.deepspeed import DummyScheduler
from rank_pool import Ranks
from trireme.hf.data_rank_scheduler import step_by_data_ranks

HERE = pathlib.Path(__file__).parent
FOUR = {
    "ddp, dp 2 x sp 2": ("train", dict(backend="ddp", sp_size=2)),
    "ddp, whole batches": ("train", dict(backend="ddp", accumulation=2, sp_size=2, whole=True)),
    "ddp, sp 4 as ring 2": ("train", dict(backend="ddp", accumulation=2, sp_size=4, sp_ring=2)),
    "fsdp2, dp_shard 2 x sp 2": ("train", dict(backend="fsdp2", accumulation=2, sp_size=2)),
    "fsdp2, dp_replicate 2 x sp 2": ("train", dict(backend="fsdp2", sp_size=2, dp_replicate_size=2)),
    "fsdp2, sp 4": ("train", dict(backend="fsdp2", sp_size=4, whole=True)),
    "zero2, dp 2 x sp 2": ("train", dict(backend="zero2", accumulation=2, sp_size=2)),
    "zero3, dp 2 x sp 2": ("train", dict(backend="zero3", accumulation=2, sp_size=2, whole=True)),
    "map": ("batches", dict(sp_size=2)),
    "map, shuffled": ("batches", dict(sp_size=2, shuffle=True)),
    "map, shuffled, one data rank": ("batches", dict(sp_size=4, shuffle=True)),
    "map, seedable": ("batches", dict(sp_size=2, shuffle=True, seedable=True)),
    "map, seedable, one data rank": ("batches", dict(sp_size=4, shuffle=True, seedable=True)),
    "map, seedable, another sampler": ("batches", dict(sp_size=2, subset=True, seedable=True)),
    "map, seedable, another sampler, one data rank": ("batches", dict(sp_size=4, subset=True, seedable=True)),
    "map, split": ("batches", dict(sp_size=2, split=True)),
    "map, dispatched": ("batches", dict(sp_size=2, dispatch=True)),
    "map, dispatched, seedable": ("batches", dict(sp_size=2, dispatch=True, shuffle=True, seedable=True)),
    "map, dispatched, shuffled": ("batches", dict(sp_size=2, dispatch=True, shuffle=True)),
    "map, dispatched, other lengths": ("batches", dict(sp_size=2, dispatch=True, batch_size=1, uneven=True)),
    "stream": ("batches", dict(sp_size=2, stream=True)),
    "stream, one data rank": ("batches", dict(sp_size=4, stream="chance")),
    "stream, by chance": ("batches", dict(sp_size=2, stream="chance")),
    "stream, split": ("batches", dict(sp_size=2, stream=True, split=True)),
    "stream, each reads": ("batches", dict(sp_size=2, stream=True, dispatch=False)),
    "stream, last dropped": ("batches", dict(sp_size=2, stream=True, drop_last=True)),
    "stream, one sample": ("batches", dict(sp_size=2, stream=True, length=1)),
    "stream, skipped": ("batches", dict(sp_size=2, stream=True, skip=1)),
    "map, skipped": ("batches", dict(sp_size=2, skip=1)),
    "dealt, one data rank": ("dealt", dict(sp_size=4, length=11)),
    "dealt, packed": ("dealt", dict(sp_size=2, length=14, pack=True)),
    "dealt, packed, a rank without": ("dealt", dict(sp_size=2, length=12, pack=True)),
    "dealt, packed, one data rank": ("dealt", dict(sp_size=4, length=14, pack=True)),
    "dealt, packed, split": ("dealt", dict(sp_size=2, length=16, pack=True, split=True)),
    "refused: 3 rows split by 2": ("dealt", dict(sp_size=2, length=14, batch_size=6, pack=True, split=True)),
    "gathered": ("gathering", dict(sp_size=2)),
    "gathered, dispatched": ("gathering", dict(sp_size=2, dispatch=True)),
    "gathered, dispatched, a batch sampler": ("gathering", dict(sp_size=2, dispatch=True, sampler="torch's")),
    "gathered, dispatched, batches without a size": ("gathering", dict(sp_size=2, dispatch=True, sampler="without a size")),
    "gathered, full": ("gathering", dict(sp_size=2, length=8)),
    "gathered, one data rank": ("gathering", dict(sp_size=4)),
    "failing read": ("failing_read", dict(sp_size=2)),
    "groups": ("groups", dict(sp_size=2, sp_ring=2)),
    "data ranks alone": ("refused", dict(backend="fsdp2", sizes=dict(dp_shard_size=4))),
    "refused: no size": ("refused", dict(backend="ddp", sizes={})),
    "refused: 3 of 4": ("refused", dict(backend="ddp", sizes=dict(sp_size=3))),
    "refused: product": ("refused", dict(backend="ddp", sizes=dict(sp_size=2, dp_replicate_size=4))),
    "refused: ddp shards": ("refused", dict(backend="ddp", sizes=dict(sp_size=2, dp_shard_size=2))),
    "refused: fsdp 1": ("refused", dict(backend="fsdp2", fsdp_version=1, sizes=dict(sp_size=2))),
    "refused: deepspeed's own": ("refused", dict(backend="zero2", settings=dict(sequence_parallel_size=2), sizes=dict(sp_size=2))),
    "refused: a slice of its own": ("refused_loader", dict(slices=True)),
    "refused: 3 split by 2": ("refused_loader", dict(batch_size=3)),
}
REFUSED = {
    "refused: a slice of its own": "slice_fn_for_dispatch",
    "refused: 3 split by 2": "batches of 3 samples for 2 data ranks",
    "refused: no size": "got no sp_size for 4 processes, and PARALLELISM_CONFIG_SP_SIZE is not set",
    "refused: 3 of 4": "sp_size: got 3 for 4 processes",
    "refused: product": "is 8, expected the number of processes, 4",
    "refused: ddp shards": "dp_shard_size: got 2 without FSDP 2",
    "refused: fsdp 1": "FSDP 1 is refused",
    "refused: deepspeed's own": "sequence_parallel_size 2 of DeepSpeed's",
}
TRAINED = [name for name, (function, _) in FOUR.items() if function == "train"]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """All cases in one start of four ranks, each a task with a limit of its own."""
    folder = tmp_path_factory.mktemp("four")
    pool, found = Ranks(folder, 4, accelerate_ranks.prepare), {}
    try:
        for name, case in FOUR.items():
            pool.run(accelerate_ranks.run_cases, 4, {name: case}, folder / "results.pt")
            found.update(torch.load(folder / "results.pt"))
    finally:
        pool.stop()
    return found


@functools.cache
def one_process(data_ranks, accumulation, whole):
    """The same steps on whole samples: the mean over all targets of a round's samples, or of each sample's mean."""
    model, samples = accelerate_ranks.make_model(), accelerate_ranks.make_samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=accelerate_ranks.RATE)
    losses, norms, at = [], [], 0
    for step in range(accelerate_ranks.STEPS):
        optimizer.zero_grad()
        for _ in range(accumulation):
            part = samples[at : at + data_ranks]
            ids, labels = (torch.stack([sample[key] for sample in part]) for key in ("input_ids", "labels"))
            logits = model(input_ids=ids).logits[:, :-1].transpose(1, 2)
            costs = torch.nn.functional.cross_entropy(logits, labels[:, 1:], reduction="none")  # [B, S - 1]
            targets = labels[:, 1:] != -100
            loss = (costs.sum(1) / targets.sum(1)).mean() if whole else costs.sum() / targets.sum()
            (loss / accumulation).backward()
            losses.append(loss.item())
            at += data_ranks
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)))
        optimizer.param_groups[0]["lr"] = accelerate_ranks.RATE * accelerate_ranks.rate_after(step * data_ranks)
        optimizer.step()
    return losses, norms, {name: parameter.detach() for name, parameter in model.named_parameters()}


def equals_one_process(seen, accumulation=1, whole=False, **_):
    losses, norms, parameters = one_process(seen["data_ranks"], accumulation, whole)
    assert len(seen["losses"]) == len(losses) and len(seen["norms"]) == len(norms)
    for got, expected in zip(seen["losses"], losses):
        assert abs(got - expected) <= 5e-6 * expected, (seen["losses"], losses)
    for got, expected in zip(seen["norms"], norms):
        assert abs(got - expected) <= 1e-4 * expected, (seen["norms"], norms)
    assert seen["parameters"].keys() == parameters.keys()
    for name, expected in parameters.items():
        error = (seen["parameters"][name] - expected).abs().max() / expected.abs().max()
        assert error <= 1e-4, (name, error)


@pytest.mark.parametrize("case", TRAINED)
def test_five_steps_equal_one_process(four, case):
    equals_one_process(four[case], **FOUR[case][1])


def test_sizes_that_are_not_given_are_filled_in(four):
    sizes = {name: tuple(four[name]["sizes"][key] for key in ("dp_replicate", "dp_shard", "sp")) for name in TRAINED}
    assert sizes["ddp, dp 2 x sp 2"] == sizes["zero3, dp 2 x sp 2"] == sizes["fsdp2, dp_replicate 2 x sp 2"] == (2, 1, 2)
    assert sizes["fsdp2, dp_shard 2 x sp 2"] == (1, 2, 2) and sizes["fsdp2, sp 4"] == (1, 1, 4)


def test_groups_are_neighbours(four):
    assert four["groups"]["ranks"] == [
        (0, 0, [0, 1], [0, 2], 2),
        (0, 1, [0, 1], [1, 3], 2),
        (1, 0, [2, 3], [0, 2], 2),
        (1, 1, [2, 3], [1, 3], 2),
    ]


@pytest.mark.parametrize("case", [name for name, (function, _) in FOUR.items() if function == "batches"])
def test_a_sequence_group_shares_batches_and_data_ranks_do_not(four, case):
    seen, options = four[case], FOUR[case][1]
    sp, length = options["sp_size"], options.get("length", 11)
    groups = [seen["ranks"][rank : rank + sp] for rank in range(0, 4, sp)]
    assert all(rank == group[0] for group in groups for rank in group), seen["ranks"]
    per_round = options.get("batch_size", 2) * (1 if options.get("split") else len(groups))
    samples = list(range(options.get("skip", 0) * per_round, length))
    if options.get("drop_last"):
        samples = samples[: len(samples) // per_round * per_round]
    for epoch in range(2):
        of_group = [group[0][epoch] for group in groups]
        assert {len(batches) for batches in of_group} == {-(-len(samples) // per_round)}
        in_order = [sample for batches in zip(*of_group) for batch in batches for sample in batch]
        real, again = in_order[: len(samples)], in_order[len(samples) :]
        assert set(again) <= set(range(length)) and len(again) < per_round
        assert sorted(real) == samples, in_order
        assert (real != samples) == (options.get("shuffle") is True or options.get("stream") == "chance" or "subset" in options)


def test_a_seeds_order_is_the_same_whether_process_0_reads_or_each(four):
    """So a run that goes on skips what it has had."""
    orders = [
        [[sample for batches in zip(rank_0[epoch], rank_2[epoch]) for batch in batches for sample in batch][:11] for epoch in range(2)]
        for rank_0, _, rank_2, _ in (four[case]["ranks"] for case in ("map, seedable", "map, dispatched, seedable"))
    ]
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


@pytest.mark.parametrize("case", [name for name in FOUR if name.startswith("dealt")])
def test_batches_that_process_0_reads_are_dealt_as_they_are(four, case):
    """Of no other than one process's rows, but for a data rank that the last round has no batch for."""
    sp, alone = FOUR[case][1]["sp_size"], four[case]["alone"]
    ranks = four[case]["ranks"]
    groups = [ranks[rank : rank + sp] for rank in range(0, 4, sp)]
    assert all(rank == group[0] for group in groups for rank in group), ranks
    batches = [batch for a_round in zip(*(group[0][0] for group in groups)) for batch in a_round]
    if "split" in case:
        batches = [first + second for first, second in zip(batches[::2], batches[1::2])]
    missing = -len(alone) % len(groups) if "split" not in case else 0
    assert batches == alone + alone[:missing]
    assert ranks[0][1] == (len(alone[-1]) if missing or (len(groups) == 1 and "packed" not in case) else -1)  # rows that gather_for_metrics keeps


def test_rows_that_cannot_be_split_are_refused(four):
    first, *others = (words for _, _, words in four["refused: 3 rows split by 2"]["ranks"])
    assert "got a batch of 3 rows for 2 data ranks" in first and all("process 0 could not read a batch" in words for words in others)


def test_lengths_count_data_ranks(four):
    assert four["map"]["length"] == 3 and four["map"]["total_batch_size"] == 4
    assert four["map, shuffled, one data rank"]["length"] == 6 and four["map, shuffled, one data rank"]["total_batch_size"] == 2
    assert four["map, dispatched"]["length"] == 3 and four["map, split"]["length"] == 6


@pytest.mark.parametrize("case", [name for name in FOUR if name.startswith("gathered")])
def test_each_sample_is_gathered_once(four, case):
    seen, length = four[case], FOUR[case][1].get("length", 7)
    data_ranks = seen["data_ranks"]
    assert seen["ranks_agree"] and seen["rounds"] == 4 // data_ranks
    assert seen["tensors"] == list(range(length))
    assert seen["nested"] == [2 * place for place in range(length)]
    assert seen["objects"] == [f"text {place}" for place in range(length)]
    assert seen["scalar"] == list(range(data_ranks)) and seen["outside"] == [0, 1, 2, 3]
    assert seen["sum"] == [data_ranks, sum(range(data_ranks))] and seen["mean"] == sum(range(data_ranks)) / data_ranks


def test_a_failing_read_is_heard_on_all_ranks(four):
    first, *others = four["failing read"]["ranks"]
    assert first.startswith("TypeError") and all(words.startswith("ConfigError: process 0 could not read") for words in others)


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_that_are_refused_are_named(four, case):
    assert REFUSED[case] in four[case]["words"]


def test_data_ranks_that_are_all_there_are_need_no_size_of_a_sequence(four):
    assert four["data ranks alone"]["words"] == ""


@pytest.mark.parametrize(
    "words, options",
    {
        "sp_size 2 together with cp_size 2": dict(sp_size=2, cp_size=2),
        "sp_size 2 together with tp_size 2": dict(sp_size=2, tp_size=2),
        "sp_ring: got 3 for sp_size 4": dict(sp_size=4, sp_ring=3),
        "sp_size: got 0": dict(sp_size=0),
        "sp_backend: got 'deepspeed'": dict(sp_size=2, sp_backend="deepspeed"),
        "sp_handler": dict(sp_size=2, sp_handler=object()),
    }.items(),
)
def test_options_that_are_refused_are_named(words, options):
    with pytest.raises(trireme.ConfigError, match=words):
        trireme.hf.ParallelismConfig(**options)


def test_deepspeed_trl_and_peft_need_not_be_installed():
    absent = "import sys; sys.modules.update(dict.fromkeys(('deepspeed', 'trl', 'peft'))); import trireme.hf as hf"
    subprocess.run([sys.executable, "-c", f"{absent}; assert hf.ParallelismConfig and hf.with_sequence_parallel"], check=True)


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "4")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_RING", "2")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_BACKEND", "deepspeed")  # accelerate launch sets it whether asked or not
    monkeypatch.setenv("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "3")
    config = trireme.hf.ParallelismConfig()
    assert (config.sp_size, config.sp_ring, config.sp_backend, config.dp_replicate_size) == (4, 2, "trireme", 3)
    assert trireme.hf.ParallelismConfig(sp_size=2, sp_ring=1).sp_size == 2
    with pytest.raises(trireme.ConfigError, match="make Accelerator"):
        config.sequence_group()
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "two")
    with pytest.raises(trireme.ConfigError, match="PARALLELISM_CONFIG_SP_SIZE: got 'two'"):
        trireme.hf.ParallelismConfig()


def test_a_skipped_step_leaves_the_rate_and_another_moves_it_by_data_ranks():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    wrapped = types.SimpleNamespace(step_was_skipped=True)
    scheduler = AcceleratedScheduler(rates, wrapped)
    scheduler.gradient_state = types.SimpleNamespace(sync_gradients=True)  # in place of the process's, which other tests change
    step_by_data_ranks(scheduler, 3)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1
    optimizer.step()
    wrapped.step_was_skipped = False
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125


class Prepares:
    """Of an Accelerator, what meets DeepSpeed: it takes what it is given for prepared."""

    def __init__(self, split_batches, micro_batch=2):
        plugin = types.SimpleNamespace(deepspeed_config={"train_micro_batch_size_per_gpu": micro_batch})
        self.split_batches = split_batches
        self.state = types.SimpleNamespace(parallelism_config=None, deepspeed_plugin=plugin)

    def _prepare_deepspeed(self, *objects):
        return objects


@pytest.mark.parametrize("split, divisor, steps", [(False, 4, 20), (True, 1, 40)])
def test_a_schedule_of_deepspeed_ends_with_the_data_ranks_loaders(split, divisor, steps):
    """divisor: what Accelerate divides the 40 steps of one process by, the number of processes unless batches are split."""
    config, given = trireme.hf.ParallelismConfig(sp_size=2, dp_replicate_size=2), DummyScheduler(None, total_num_steps=40)
    prepared, endless = config._prepare_deepspeed(Prepares(split), given, DummyScheduler(None))
    assert prepared.total_num_steps / divisor == steps and endless.total_num_steps is None
    assert given.total_num_steps == 40


@pytest.mark.parametrize("micro, split, refused", [("auto", True, True), ("auto", False, False), (2, True, False)])
def test_split_batches_need_deepspeed_s_micro_batch_as_a_number(micro, split, refused):
    config = trireme.hf.ParallelismConfig(sp_size=2, dp_replicate_size=2)
    with pytest.raises(ValueError, match="over the data ranks") if refused else contextlib.nullcontext():
        config._prepare_deepspeed(Prepares(split, micro))


CONFIG_FILE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_machines: 1
num_processes: 2
main_process_port: 0
parallelism_config:
  parallelism_config_sp_size: 2
  parallelism_config_sp_backend: trireme
"""


def test_accelerate_launch_with_a_config_file(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG_FILE)
    options = dict(backend="ddp", accumulation=2, whole=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CASES": json.dumps({"ddp": ("train", options)}), "RESULTS": str(tmp_path / "results.pt")}
    launcher = ["accelerate.commands.accelerate_cli", "launch", "--config_file", str(tmp_path / "config.yaml")]
    command = [sys.executable, "-m", *launcher, str(HERE / "accelerate_ranks.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-12000:]
    seen = torch.load(tmp_path / "results.pt")["ddp"]
    assert seen["data_ranks"] == 1 and seen["sizes"]["sp"] == 2
    equals_one_process(seen, **options)
