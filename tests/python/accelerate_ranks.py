"""One rank of tests/python/test_accelerate.py, in processes of their own: Accelerate keeps its state for a whole process.

Runs each named case and lets process 0 write what it saw, {case: results}, into a file. As a program, which a launcher starts, it runs
the cases of the variable CASES into the file RESULTS.
"""

import datetime
import json
import os

os.environ.update(DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
import torch.distributed as dist
import trireme
import trireme.hf
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from rank_pool import import_deepspeed
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SubsetRandomSampler

SAMPLES, TOKENS, STEPS, RATE = 40, 23, 5, 0.05


def rate_after(steps):
    """The factor of the learning rate."""
    return 1 / (1 + 0.3 * steps)


def make_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    size = dict(vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**size)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def make_samples():
    """Samples that have different numbers of targets, one none in its second half."""
    ids = torch.randint(3, 67, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(4))
    labels = ids.clone()
    for place in range(SAMPLES):
        labels[place, : place % 7] = -100
    labels[1, TOKENS // 2 :] = -100
    return [{"input_ids": ids[place], "labels": labels[place]} for place in range(SAMPLES)]


def accelerator_for(backend, config, settings=None, fsdp_version=2, **options):
    """An Accelerator whose class and settings are the first of this process."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_CPU"):
        os.environ.pop(name, None)
    if backend == "ddp":
        return Accelerator(cpu=True, parallelism_config=config, **options)
    gloo = InitProcessGroupKwargs(backend="gloo")
    if backend == "fsdp2":
        PartialState(backend="gloo")
        # Accelerate has FSDP for accelerators alone; torch has it over gloo too.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=fsdp_version), parallelism_config=config, **options)
    stage = int(backend.removeprefix("zero"))
    settings = {
        **(settings or {}),
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1e3,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings), kwargs_handlers=[gloo], parallelism_config=config, **options)


def parameters_of(model):
    import deepspeed

    found = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            with deepspeed.zero.GatheredParameters([parameter]):
                whole = parameter.detach().clone()
        else:
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found[name.removeprefix("module.")] = whole.detach().float().clone()
    return found


def train(backend, accumulation=1, whole=False, **sizes):
    """The loop of Accelerate's guides: prepare, accumulate, backward, clip_grad_norm_, step.

    whole: each data rank's loss is the mean over its own batch; without it, the mean over all ranks' targets.
    """
    config = trireme.hf.ParallelismConfig(**sizes)
    accelerator = accelerator_for(backend, config, gradient_accumulation_steps=accumulation)
    group = config.sequence_group()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_after)
    loader = DataLoader(make_samples(), batch_size=1)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses, norms = [], []
    with trireme.parallelize(model, group, whole_batches=whole, averaged_over=config.sp_size):
        for batch in loader:
            with accelerator.accumulate(model):
                if whole:
                    loss = model(**batch).loss
                else:
                    part = trireme.shard(batch, group)
                    targets = part.pop("shift_labels")
                    loss = trireme.loss(model(**part).logits, targets, averaged_over=dist.get_world_size())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1e3)))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            with config.gather_once(accelerator):
                losses.append(accelerator.gather(loss.detach()).mean().item())
            if len(norms) == STEPS:
                break
    return dict(losses=losses, norms=norms, parameters=parameters_of(model), data_ranks=config.data_parallel_size, sizes=dict(config._sizes))


class Stream(IterableDataset):
    """Numbers; with `chance`, in an order that each process draws for itself."""

    def __init__(self, length, chance=False):
        self.length, self.chance = length, chance

    def __iter__(self):
        order = torch.randperm(self.length).tolist() if self.chance else range(self.length)
        yield from ({"x": torch.tensor(place)} for place in order)


def of_its_length(samples):
    """Batches whose lengths differ, as long documents do."""
    return {"x": samples[0]["x"].expand(1, 1 + int(samples[0]["x"]) % 5)}


def numbers(batch):
    return batch["x"][..., :1].flatten().tolist() if batch["x"].dim() > 1 else batch["x"].tolist()


def batches(
    sp_size, dispatch=None, split=False, seedable=False, stream=False, length=11, batch_size=2, skip=0, uneven=False, subset=False, **loader
):
    """Each rank's batches, over two epochs."""
    config = trireme.hf.ParallelismConfig(sp_size=sp_size)
    options = DataLoaderConfiguration(dispatch_batches=dispatch, split_batches=split, use_seedable_sampler=seedable)
    accelerator = accelerator_for("ddp", config, dataloader_config=options)
    torch.manual_seed(100 + dist.get_rank())  # ranks that draw for themselves differ
    data = Stream(length, chance=stream == "chance") if stream else [{"x": torch.tensor(place)} for place in range(length)]
    if subset:
        loader["sampler"] = SubsetRandomSampler(range(length))
    loader = accelerator.prepare(DataLoader(data, batch_size, collate_fn=of_its_length if uneven else None, **loader))
    if skip:
        loader = accelerator.skip_first_batches(loader, skip)
    mine = [[numbers(batch) for batch in loader] for _ in range(2)]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    sizes = dict(length=None if stream else len(loader), total_batch_size=None if dispatch or stream or skip else loader.total_batch_size)
    return dict(ranks=everyone, data_ranks=config.data_parallel_size, **sizes)


def packed(samples):
    """Two documents a row, so fewer rows than samples."""
    places = [sample["x"] for sample in samples] + [torch.tensor(-1)] * (len(samples) % 2)
    return {"x": torch.stack(places).view(-1, 2)}


def dealt(sp_size, length, batch_size=4, pack=False, split=False):
    """Each rank's batches that process 0 reads, and those of one process's loader."""
    config = trireme.hf.ParallelismConfig(sp_size=sp_size)
    accelerator = accelerator_for("ddp", config, dataloader_config=DataLoaderConfiguration(dispatch_batches=True, split_batches=split))
    data = [{"x": torch.tensor(place)} for place in range(length)]
    loader = DataLoader(data, batch_size, collate_fn=packed if pack else None)
    alone, mine, words = [batch["x"].tolist() for batch in loader], [], ""
    try:
        for batch in accelerator.prepare(loader):
            mine.append(batch["x"].tolist())
            real = accelerator.gradient_state.remainder
    except trireme.ConfigError as error:
        words, real = str(error), None
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (mine, real, words))
    return dict(ranks=everyone, alone=alone)


def gathering(sp_size, dispatch=False, length=7, sampler=None):
    """What gather_once gives for loaders whose last round is not full."""
    config = trireme.hf.ParallelismConfig(sp_size=sp_size)
    accelerator = accelerator_for("ddp", config, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    data = [{"x": torch.tensor(place)} for place in range(length)]
    batches = BatchSampler(range(length), 2, drop_last=False)
    made = {None: dict(batch_size=2), "torch's": dict(batch_sampler=batches), "without a size": dict(batch_sampler=list(batches))}[sampler]
    loader = accelerator.prepare(DataLoader(data, **made))
    found = dict(tensors=[], nested=[], objects=[], rounds=0)
    plain = accelerator.gather
    with config.gather_once(accelerator):
        found["scalar"] = accelerator.gather(torch.tensor(config.data_rank)).tolist()
        found["sum"] = accelerator.reduce(torch.tensor([1.0, config.data_rank]), "sum").tolist()
        found["mean"] = accelerator.reduce({"a": torch.tensor(float(config.data_rank))}, "mean")["a"].item()
        for batch in loader:
            x = batch["x"]
            found["tensors"] += accelerator.gather_for_metrics(x).tolist()
            found["nested"] += accelerator.gather_for_metrics({"logits": (x, x[:, None] * 2)})["logits"][1].flatten().tolist()
            found["objects"] += accelerator.gather_for_metrics([f"text {int(one)}" for one in x])
            found["forced"] = accelerator.gather_for_metrics([x], use_gather_object=True)
            found["rounds"] += 1
    assert accelerator.gather == plain and "gather" not in vars(accelerator)
    found["outside"] = accelerator.gather(torch.tensor(dist.get_rank())).tolist()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, repr({key: value for key, value in found.items() if key != "forced"}))
    return dict(found, ranks_agree=len(set(everyone)) == 1, data_ranks=config.data_parallel_size)


def groups(**sizes):
    """Where each rank is."""
    config = trireme.hf.ParallelismConfig(**sizes)
    accelerator_for("ddp", config)
    group, data = config.sequence_group(), config.data_group()
    members = dist.get_process_group_ranks(group.process_group), dist.get_process_group_ranks(data.process_group)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (config.data_rank, group.rank, *members, group.ring))
    return dict(ranks=everyone)


def refused(backend, sizes, settings=None, fsdp_version=2):
    """The words of the refusal."""
    try:
        config = trireme.hf.ParallelismConfig(**sizes)
        accelerator_for(backend, config, settings=settings, fsdp_version=fsdp_version)
    except trireme.ConfigError as error:
        return dict(words=str(error))
    return dict(words="")


def refused_loader(slices=False, **loader):
    """The words of a loader's refusal."""
    settings = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
    accelerator = accelerator_for("ddp", trireme.hf.ParallelismConfig(sp_size=2), dataloader_config=settings)
    try:
        accelerator.prepare_data_loader(DataLoader(list(range(9)), **loader), slice_fn_for_dispatch=list if slices else None)
    except trireme.ConfigError as error:
        return dict(words=str(error))
    return dict(words="")


def failing_read(sp_size):
    """A data set that fails at process 0, which alone reads: every process hears of it."""
    config = trireme.hf.ParallelismConfig(sp_size=sp_size)
    accelerator = accelerator_for("ddp", config, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader = accelerator.prepare(DataLoader([{"x": torch.tensor(1)}, None], batch_size=1, collate_fn=lambda one: {"x": one[0]["x"][None]}))
    try:
        list(loader)
        mine = "nothing"
    except Exception as error:
        mine = f"{type(error).__name__}: {error}"
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return dict(ranks=everyone)


def prepare():
    """What a launcher tells."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import_deepspeed()


def run_cases(_group, cases, file):
    results = {}
    for name, (function, keywords) in cases.items():
        results[name] = globals()[function](**keywords)
        AcceleratorState._reset_state(True)
    if dist.get_rank() == 0:
        torch.save(results, file)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=200))
    run_cases(None, json.loads(os.environ["CASES"]), os.environ["RESULTS"])
    dist.barrier()
    dist.destroy_process_group()
