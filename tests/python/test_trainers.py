"""Trainer, SFTTrainer and DPOTrainer over ranks that share each sample, against the same trainer in one process: 20 steps."""

import gc
import inspect
import multiprocessing
import os
import pickle
import re
import traceback
import types

import numpy as np
import pytest
import torch
from rank_pool import draw_apart, forks, import_deepspeed
from trainer_cases import CASES, OTHERS, make_model, make_tokenizer, run, write_rows

STARTED_SECONDS = 420


def work(rank, world, folder, runs):
    """One process of `world`: all runs, one after another."""
    gc.freeze()
    os.environ.update(OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    words = os.open(folder / f"words.{rank}", os.O_WRONLY | os.O_CREAT)  # progress bars
    os.dup2(words, 1)
    os.dup2(words, 2)
    import torch.distributed as dist

    if any("deepspeed" in options for _, options in runs):
        import_deepspeed()
    draw_apart()
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    else:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    for number, (case, options) in enumerate(runs):
        try:
            into = folder / f"run{number}"
            result = run(case, into, **options) if case in CASES else OTHERS[case](into)
        except BaseException:
            result = traceback.format_exc()
        if rank == 0 or isinstance(result, str):
            (folder / f"{number}.{rank}").write_bytes(pickle.dumps(result))
        if isinstance(result, str):
            break
    os._exit(0)


def results(world, folder, runs, context=None):
    """{(case, repr(options)): result} of processes of their own, forked or of another context of multiprocessing."""
    folder.mkdir()
    write_rows(folder)
    context = context or forks()
    workers = [context.Process(target=work, args=(rank, world, folder, runs), daemon=True) for rank in range(world)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(STARTED_SECONDS)
    late = [worker for worker in workers if worker.is_alive()]
    for worker in late:
        worker.kill()
    found = {}
    for number, (case, options) in enumerate(runs):
        for rank in range(world):
            if (folder / f"{number}.{rank}").exists():
                result = pickle.loads((folder / f"{number}.{rank}").read_bytes())
                if isinstance(result, str):
                    pytest.fail(f"{case} {options}, rank {rank} of {world}: {result}", pytrace=False)
                found[case, repr(options)] = result
    assert not late and len(found) == len(runs), f"{len(found)} of {len(runs)} runs ended, {len(late)} processes did not"
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """alone(cases): of one process, each run once."""
    known = {}

    def run_alone(cases):
        runs = [(case, {}) for case in cases if (case, "{}") not in known]
        if runs:
            known.update(results(1, tmp_path_factory.mktemp("alone") / "runs", runs))
        return some(known, cases)

    return run_alone


def compare(truth, got, gradients=True):
    """What was logged in each step, the gradients of the first step and the last, the weights in the end."""
    unlike = ("runtime", "_second") if gradients else ("runtime", "_second", "total_flos")  # which transformers counts by ZeRO-3's shards
    logs = [{key: value for key, value in entry.items() if not key.endswith(unlike)} for entry in truth["log"]]
    assert len(got["log"]) == len(logs)
    for expected, entry in zip(logs, got["log"]):
        for key, value in expected.items():
            tolerance = 5e-6 if key in ("loss", "eval_loss", "train_loss") else 1e-4
            assert abs(entry[key] - value) <= tolerance * max(1, abs(value)), f"step {expected['step']}, {key}: {entry[key]}, alone {value}"
    for kind in ("gradients", "weights") if gradients else ("weights",):
        assert got[kind].keys() == truth[kind].keys() and truth[kind]
        for name, expected in truth[kind].items():
            error, largest = np.abs(got[kind][name] - expected).max(), np.abs(expected).max()
            assert error <= 1e-4 * largest + 1e-9, f"{kind} {name}: {error} of {largest}"


def compare_all(truths, found, options, gradients=True):
    for case, of_case in truths.items():
        try:
            compare(of_case, found[case, repr(options)], gradients)
        except AssertionError as error:
            raise AssertionError(f"{case}, {options}: {error}") from error


def some(truths, cases):
    return {case: truths[case, "{}"] for case in cases}


FEW = ["Trainer", "SFT, bfd", "DPO"]
GATE = [*FEW, "Trainer, metrics", "Trainer, metrics by token", "SFT, metrics by token", "Trainer, batches of equal cost", "Trainer, by length", "SFT, LoRA"]
FSDP = {"fsdp": "full_shard", "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}


def test_two_ranks_are_as_one_process(alone, tmp_path):
    """And under FSDP 2, after an evaluation, and when a run goes on from its checkpoint."""
    first, others = GATE[0], GATE[1:]
    saved = {"sp_size": 2, "save_strategy": "steps", "save_steps": 10}
    resumed = {"sp_size": 2, "resume": str(tmp_path / "runs" / f"run{len(others)}" / "checkpoint-10")}
    sharded = {"sp_size": 2, **FSDP}
    adamw = {"optim": "adamw_torch", "learning_rate": 1e-3}  # without a state, torch cannot load an optimizer under FSDP 2
    saved_shards = {**saved, **FSDP, **adamw, "steps": 6, "save_steps": 3}
    resumed_shards = {**sharded, **adamw, "steps": 6, "resume": str(tmp_path / "runs" / f"run{len(others) + 2}" / "checkpoint-3")}
    smoothed = "Trainer, label smoothing"  # FSDP 2 changes the name of the model's class, by which a trainer knows that labels shift
    runs = [(case, {"sp_size": 2}) for case in others] + [(first, options) for options in (saved, resumed, saved_shards, resumed_shards)]
    runs += [(case, sharded) for case in [*FEW, smoothed, "SFT, LoRA"]]
    evaluated = {"sp_size": 2, "evaluate": True}
    runs.append((first, evaluated))
    in_16_bits = [{"sp_size": 2, "bf16": True, "steps": 5, "evaluate": evaluate} for evaluate in (False, True)]
    runs += [("SFT, bfd", options) for options in in_16_bits]  # whose forward is TRL's, below Accelerate's
    found = results(2, tmp_path / "runs", runs)
    trained, evaluated_first = (found["SFT, bfd", repr(options)] for options in in_16_bits)
    for name, expected in trained["weights"].items():
        assert np.array_equal(evaluated_first["weights"][name], expected), name
    compare_all(alone(others), found, {"sp_size": 2})
    for options in (saved, evaluated):
        compare_all(alone([first]), found, options)
    compare_all(alone([*FEW, smoothed, "SFT, LoRA"]), found, sharded)
    for through, again in ((saved, resumed), (saved_shards, resumed_shards)):
        for name, expected in found[first, repr(through)]["weights"].items():
            assert np.array_equal(found[first, repr(again)]["weights"][name], expected)


@pytest.mark.slow
def test_two_ranks_are_as_one_process_in_every_other_case(alone, tmp_path):
    cases = [case for case in CASES if case not in GATE]
    sharded = {"sp_size": 2, **FSDP}
    compiled = {"sp_size": 2, "torch_compile": True, "torch_compile_backend": "aot_eager"}
    offload = {"use_reentrant": False, "offload": True}
    offloaded = {"sp_size": 2, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": offload}
    runs = [(case, {"sp_size": 2}) for case in cases] + [(case, sharded) for case in CASES]
    evaluated = {**compiled, "evaluate": True}
    runs += [("Trainer", evaluated)] + [(case, compiled) for case in FEW] + [(case, offloaded) for case in FEW[:2]]  # TRL's DPOTrainer does not read "offload"
    found = results(2, tmp_path / "runs", runs)
    compare_all(alone(FEW), found, compiled)
    compare_all(alone(FEW[:1]), found, evaluated)
    compare_all(alone(FEW[:2]), found, offloaded)
    compare_all(alone(cases), found, {"sp_size": 2})
    compare_all(alone(CASES), found, sharded)


@pytest.mark.slow
def test_two_ranks_with_hash_seeds_of_their_own_are_as_one_process(alone, tmp_path):
    """As a launcher starts them; forked ranks share one, and with it the order of sets."""
    cases = [*FEW, "SFT, LoRA"]
    found = results(2, tmp_path / "runs", [(case, {"sp_size": 2}) for case in cases], multiprocessing.get_context("spawn"))
    compare_all(alone(cases), found, {"sp_size": 2})


@pytest.mark.slow
def test_four_ranks_are_as_one_process_and_two_groups_as_two_data_ranks(alone, tmp_path):
    cases = [*GATE, "DPO, reference before"]
    data_ranks = results(2, tmp_path / "data", [(case, {}) for case in cases])
    found = results(4, tmp_path / "runs", [(case, {"sp_size": size}) for size in (2, 4) for case in cases])
    compare_all(some(data_ranks, cases), found, {"sp_size": 2})
    compare_all(alone(cases), found, {"sp_size": 4})


def zero(stage):
    automatic = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping"), "auto")
    return {"deepspeed": {**automatic, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}}


@pytest.mark.slow
def test_under_deepspeed(alone, tmp_path):
    """Its gradients are not the parameters' own: norms of each step and weights in the end are compared."""
    runs = [("Trainer", {"sp_size": 2, **zero(2)}), *((case, {"sp_size": 2, **zero(3)}) for case in FEW)]
    found = results(2, tmp_path / "runs", runs)
    compare_all(alone(FEW[:1]), found, {"sp_size": 2, **zero(2)}, gradients=False)
    compare_all(alone(FEW), found, {"sp_size": 2, **zero(3)}, gradients=False)


def test_a_trainer_takes_the_sizes_that_it_was_given_whatever_was_made_before(alone, tmp_path):
    second = {"sp_size": 2, "second": True}
    found = results(2, tmp_path / "runs", [("sizes", {}), ("Trainer", second)])
    compare_all(alone(["Trainer"]), found, second)
    assert found["sizes", "{}"]["ring"] == 2
    assert "got sp 2 (ring 2), but an Accelerator with sp 2 was made after this trainer's arguments" in found["sizes", "{}"]["words"]


def test_an_evaluation_says_once_how_many_bytes_of_logits_it_gathers(tmp_path):
    whole, by_token = results(2, tmp_path / "runs", [("told of logits", {})])["told of logits", "{}"]
    assert len(whole) == 1 and re.search(r"gathers logits of \[2, \d\d, 64\] on every rank, \d{5} bytes .*logits_by_token=True", whole[0])
    assert by_token == []


def test_what_a_hook_gives_by_token_is_padded_between_data_ranks_as_a_plain_trainer_pads_it(tmp_path):
    plain, by_token = results(2, tmp_path / "runs", [("lengths by token", {})])["lengths by token", "{}"]
    for expected, got in zip(plain, by_token):
        assert got.shape == (2, 14) and got.dtype == expected.dtype and np.array_equal(got, expected)


def test_a_model_under_fsdp_1_is_refused_by_name(tmp_path):
    (words,) = results(2, tmp_path / "runs", [("under FSDP 1", {})])["under FSDP 1", "{}"]
    assert re.search("FSDP 1.*fully_shard", words)


def test_one_process_tells_that_all_share_each_sample(capsys):
    from trireme.hf.trainer import _SequenceParallel

    for rank, ranks, told in ((0, 4, True), (1, 4, False), (0, 1, False)):
        arguments = types.SimpleNamespace(process_index=rank, per_device_train_batch_size=3)
        _SequenceParallel._tell_that_all_share(types.SimpleNamespace(args=arguments), ranks)
        assert ("all 4 processes share each sample, so a batch has 3 in all" in capsys.readouterr().err) == told


def test_a_trainer_with_the_arguments_of_another_has_sizes_of_its_own(tmp_path):
    import transformers
    from torch.utils.data import DataLoader
    from trireme.hf import with_sequence_parallel
    from trireme.hf.dispatched_batches import DispatchedBatches

    arguments = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    first = with_sequence_parallel(transformers.Trainer)(make_model(), arguments)
    made = arguments.parallelism_config
    second = with_sequence_parallel(transformers.Trainer)(make_model(), arguments)
    assert made is not None and second.args.parallelism_config.sp_size == 1
    again = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, parallelism_config=made)
    assert with_sequence_parallel(transformers.Trainer)(make_model(), again).args.parallelism_config is made
    read = DataLoader(list(range(7)), batch_size=2)
    assert first.num_examples(read) == first.num_examples(DataLoader(DispatchedBatches(read, 0, 1, False), batch_size=None)) == 7


def test_the_signature_is_the_trainers_own():
    import transformers
    import trl
    from trireme.hf import with_sequence_parallel

    for trainer in (transformers.Trainer, trl.SFTTrainer, trl.DPOTrainer):
        assert inspect.signature(with_sequence_parallel(trainer)) == inspect.signature(trainer)


def test_a_plain_trainer_beside_sequence_ranks_is_refused(tmp_path, monkeypatch):
    """It would multiply loss and gradients by their number, and share nothing."""
    import datasets
    import transformers
    import trl
    from accelerate.state import AcceleratorState
    from trireme import ConfigError
    from trireme.hf import ParallelismConfig

    monkeypatch.setattr(ParallelismConfig, "build_device_mesh", lambda config, kind: None)  # of one process
    settings = dict(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    data = datasets.Dataset.from_list([{"text": "w1 w2"}])
    try:
        for trainer, arguments in ((transformers.Trainer, transformers.TrainingArguments), (trl.SFTTrainer, trl.SFTConfig)):
            given = arguments(**settings, parallelism_config=ParallelismConfig(sp_size=2))
            with pytest.raises(ConfigError, match=rf"got sp_size 2 with a plain {trainer.__name__} .*with_sequence_parallel\({trainer.__name__}\)"):
                trainer(make_model(), given, train_dataset=data, processing_class=make_tokenizer())
    finally:
        AcceleratorState._reset_state(True)


def test_what_is_refused(tmp_path):
    import accelerate
    import transformers
    import trl
    from trireme import ConfigError
    from trireme.hf import ParallelismConfig, with_sequence_parallel
    from trl.experimental.gkd import GKDTrainer
    from trl.experimental.gold import GOLDTrainer

    def make(**settings):
        arguments = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, **settings)
        return with_sequence_parallel(transformers.Trainer)(make_model(), arguments, train_dataset=[{"input_ids": [3, 4]}] * 8)

    with pytest.raises(ConfigError, match="use_liger_kernel"):
        make(use_liger_kernel=True)
    with pytest.raises(ConfigError, match="neftune_noise_alpha"):
        make(neftune_noise_alpha=5)
    with pytest.raises(ConfigError, match="expected a trireme.hf.ParallelismConfig"):
        make(parallelism_config=accelerate.ParallelismConfig())
    trainer = make(train_sampling_strategy="batch_rebalance", accelerator_config={"dispatch_batches": True})
    trainer.args.parallelism_config = types.SimpleNamespace(sp_size=2, data_parallel_size=2)
    with pytest.raises(ConfigError, match="batch_rebalance' together with dispatch_batches"):
        trainer._get_train_sampler()
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32, attention_dropout=0.0)
    row = {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1], "labels": [-100, -100, -100, 6]}
    trainer.args.parallelism_config = None
    trainer = with_sequence_parallel(transformers.Trainer)(
        transformers.OPTForCausalLM(transformers.OPTConfig(**sizes)), trainer.args, eval_dataset=[row]
    )
    for _ in range(2):  # the model is looked at once
        with pytest.raises(ConfigError, match="counts positions by its attention_mask"):
            trainer.evaluate()
    with pytest.raises(ConfigError, match="expected SFTTrainer or DPOTrainer"):
        with_sequence_parallel(trl.RewardTrainer)
    for distiller in (GKDTrainer, GOLDTrainer):  # of trl's SFTTrainer, and they generate
        with pytest.raises(ConfigError, match=f"got {distiller.__name__}.*others generate"):
            with_sequence_parallel(distiller)
    for no_class in (torch.nn.Linear, trainer):
        with pytest.raises(ConfigError, match="derives from transformers.Trainer"):
            with_sequence_parallel(no_class)
    with pytest.raises(ConfigError, match="has made already"):
        with_sequence_parallel(type(trainer))
    for step in (trainer.training_step, lambda *given: trainer.prediction_step(*given, prediction_loss_only=True)):
        with pytest.raises(ConfigError, match="outside train"):
            step(trainer.model, {})
    with pytest.raises(ConfigError, match="sp_ring=2 beside args.parallelism_config with sp_size=1, sp_ring=1"):
        arguments = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, parallelism_config=ParallelismConfig(sp_size=1))
        with_sequence_parallel(transformers.Trainer, sp_ring=2)(make_model(), arguments)
