"""Plain loops on shards under DDP, FSDP2 and DeepSpeed's ZeRO engine: twenty steps equal to one process (twenty_steps.py).

To the wrapper every rank is a data rank; Trireme shares samples among them: all ranks one sample, or pairs of ranks.
"""

import contextlib
import functools

import pytest
import torch
import torch.distributed as dist
import trireme
from test_parallelize import make_batch, make_model
from twenty_steps import ACCUMULATION, CLIP, MODEL, alone, compare, on_shards, optimizer_of


class OfTorch:
    """What DDP and FSDP2 do alike."""

    def backward(self, loss):
        loss.backward()

    def after_micro_batch(self):
        pass

    def step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()


class Ddp(OfTorch):
    def __init__(self, everyone):
        self.model = torch.nn.parallel.DistributedDataParallel(make_model(MODEL), process_group=everyone)
        self.optimizer = optimizer_of(self.model)
        self.averaged_over = everyone.size()
        self.accumulating = self.model.no_sync

    def gradients(self):
        return {name: parameter.grad.clone() for name, parameter in self.model.module.named_parameters()}


class Fsdp2(OfTorch):
    def __init__(self, everyone):
        self.model = make_model(MODEL)
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        mesh = dist.DeviceMesh.from_group(everyone, "cpu")
        for layer in self.model.model.layers:
            dist.fsdp.fully_shard(layer, mesh=mesh)
        dist.fsdp.fully_shard(self.model, mesh=mesh)
        self.optimizer = optimizer_of(self.model)
        self.averaged_over = everyone.size()

    @contextlib.contextmanager
    def accumulating(self):
        self.model.set_requires_gradient_sync(False)
        yield
        self.model.set_requires_gradient_sync(True)

    def gradients(self):
        return {name: parameter.grad.full_tensor() for name, parameter in self.model.named_parameters()}


class Zero:
    """DeepSpeed's engine, with no sequence_parallel_size."""

    accumulating = contextlib.nullcontext

    def __init__(self, everyone, stage):
        import deepspeed

        model = make_model(MODEL)
        options = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": ACCUMULATION,
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
        }
        self.model, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(model), config=options)
        self.averaged_over = everyone.size()

    def backward(self, loss):
        self.model.backward(loss, scale_wrt_gas=False)  # num_targets is of all micro-batches

    def after_micro_batch(self):
        self.model.step()

    def gradients(self):
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(parameter).clone() for name, parameter in self.model.module.named_parameters()}

    def step(self):
        return float(self.model.get_global_grad_norm())


def sequence_group(everyone, ranks):
    """The group of this rank's `ranks` neighbours, and which of the data ranks it is."""
    if ranks == everyone.size():
        return everyone, 0
    groups = [dist.new_group(list(range(first, first + ranks))) for first in range(0, everyone.size(), ranks)]
    data_rank = everyone.rank() // ranks
    return groups[data_rank], data_rank


def hold(everyone, sequence_ranks, wrappers):
    sequence, data_rank = sequence_group(everyone, sequence_ranks)
    truth = alone(everyone.size() // sequence_ranks)
    for name, make in wrappers.items():
        try:
            compare(truth, on_shards(make(everyone), sequence, everyone, data_rank))
        except Exception as error:
            raise AssertionError(name) from error


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


FOUR_RANKS = slow(4, 4, ("Ddp",)), slow(4, 2, ("Ddp", "Fsdp2"))
FOUR_RANKS_ZERO = slow(4, 4, (2,)), slow(4, 2, (3,))


@pytest.mark.parametrize("count, sequence_ranks, names", [(2, 2, ("Ddp", "Fsdp2")), *FOUR_RANKS])
def test_ddp_and_fsdp2_equal_one_process(ranks, count, sequence_ranks, names):
    ranks.run(run_ddp_and_fsdp2, count, sequence_ranks, names)


def run_ddp_and_fsdp2(everyone, sequence_ranks, names):
    hold(everyone, sequence_ranks, {name: {"Ddp": Ddp, "Fsdp2": Fsdp2}[name] for name in names})


def test_fsdp2_trains_on_after_an_evaluation(ranks):
    ranks.run(run_between_evaluations, 2)


def run_between_evaluations(everyone):
    """It leaves parameters of its root whole after a forward pass that no backward follows."""
    wrapped = Fsdp2(everyone)
    batch = make_batch("plain", MODEL)
    part = trireme.shard(batch, everyone)
    targets = part.pop("shift_labels")
    for training in (True, False, True):
        with trireme.parallelize(wrapped.model, everyone), torch.set_grad_enabled(training):
            for _ in range(2):
                loss = trireme.loss(wrapped.model(**part).logits, targets, everyone, averaged_over=everyone.size())
                if training:
                    loss.backward()
                    wrapped.step()


@pytest.mark.parametrize("count, sequence_ranks, stages", [slow(2, 2, (1, 2, 3)), *FOUR_RANKS_ZERO])
def test_zero_stages_equal_one_process(deepspeed_ranks, count, sequence_ranks, stages):
    deepspeed_ranks[count].run(run_zero, count, sequence_ranks, stages)


def run_zero(everyone, sequence_ranks, stages):
    engine = Zero(everyone, stages[0]).model
    sharing, _ = sequence_group(everyone, sequence_ranks)
    with pytest.raises(trireme.ConfigError, match=f"DeepSpeedEngine averages gradients over {sequence_ranks} ranks of the group"):
        with trireme.parallelize(engine, sharing, whole_batches=True):
            pass
    hold(everyone, sequence_ranks, {f"ZeRO-{stage}": functools.partial(Zero, stage=stage) for stage in stages})


def test_fsdp_1_is_refused_by_name(ranks):
    ranks.run(run_fsdp_1, 2)


def run_fsdp_1(group):
    for of_layers_alone in (False, True):
        model = make_model(MODEL)
        wrap = functools.partial(dist.fsdp.FullyShardedDataParallel, process_group=group, use_orig_params=True, device_id=torch.device("cpu"))
        if of_layers_alone:
            model.model.layers[0] = wrap(model.model.layers[0])
        with pytest.raises(trireme.ConfigError, match="FSDP 1.*fully_shard"):
            with trireme.parallelize(model if of_layers_alone else wrap(model), group, whole_batches=True, averaged_over=2):
                pass
