"""trireme.offload_activations: gradients to the bit, and the layers' inputs really elsewhere between forward and backward."""

import contextlib
import gc
import types

import pytest
import torch
import trireme
from test_fused_loss import make_batch, make_model, step
from torch.multiprocessing.reductions import StorageWeakRef
from trireme.offload import _dense, _Offload
from trireme.pinned_host import SMALLEST_PIECE_BYTES, PinnedHost, piece_sizes


class Disk:
    """A store in files: nothing of a tensor stays in memory."""

    def __init__(self, folder):
        self.folder = folder
        self.taken, self.loads = [], []

    def __call__(self, tensor):
        assert tensor.is_contiguous() and not tensor.requires_grad
        number, path = len(self.taken), self.folder / str(len(self.taken))
        self.taken.append((tensor.shape, StorageWeakRef(tensor.untyped_storage())))
        tensor.view(torch.uint8).numpy().tofile(path)
        size, dtype = tensor.shape, tensor.dtype

        def load():
            self.loads.append(number)
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=dtype).view(size)

        return load


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [None, False, True])
def test_gradients_are_the_same_to_the_bit(checkpointing, dtype, tmp_path):
    """checkpointing: use_reentrant of the layers' checkpoints."""
    model, batch = make_model("Llama", {}).to(dtype), make_batch()
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    _, (loss, truth) = step(model, batch)
    disk = Disk(tmp_path)
    with trireme.offload_activations(model, min_bytes=1, store=disk):
        _, (same, found) = step(model, batch)
    assert same == loss and all(torch.equal(found[name], truth[name]) for name in truth)
    hidden = [shape for shape, _ in disk.taken if shape == (2, 29, 32)]
    assert len(disk.taken) == len(hidden) == 2 if checkpointing is not None else len(disk.taken) > 20
    assert set(disk.loads) == set(range(len(disk.taken)))
    parameters = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
    assert not parameters & {shape for shape, _ in disk.taken}
    assert not any("forward" in layer.__dict__ for layer in model.modules())


def test_the_inputs_of_layers_are_freed_until_backward(tmp_path):
    model, batch = make_model("Llama", {}, num_hidden_layers=4), make_batch()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    disk = Disk(tmp_path)

    def forward(store):
        kept = []

        def note(_layer, given):
            kept.append(StorageWeakRef(given[0].untyped_storage()))

        hooks = [layer.register_forward_pre_hook(note) for layer in model.model.layers]
        with trireme.offload_activations(model, min_bytes=1, store=store) if store else contextlib.nullcontext():
            loss = model(**batch).loss
        for hook in hooks:
            hook.remove()
        gc.collect()
        return loss, [not reference.expired() for reference in kept]

    assert forward(None)[1] == [True] * 4
    loss, alive = forward(disk)
    assert alive == [False] * 4 and not disk.loads
    loss.backward()  # after the block
    assert disk.loads == [3, 2, 1, 0]


class OwnCheckpoints(torch.nn.Module):
    """A model of a user, which checkpoints its layers in its own forward."""

    def __init__(self, use_reentrant):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)) for _ in range(3))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_around_layers_are_refused_and_those_within_are_kept(use_reentrant, tmp_path):
    model, x = OwnCheckpoints(use_reentrant), torch.randn(16, 8, requires_grad=True)
    with pytest.raises(trireme.ConfigError, match="give layers=.the module whose forward calls checkpoint"):
        with trireme.offload_activations(model, layers=model.layers, min_bytes=1, store=Disk(tmp_path)):
            model(x).sum().backward()
    gc.collect()  # torch takes its hooks away with the frames that an error holds
    model.zero_grad()
    model(x).sum().backward()
    truth = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    disk = Disk(tmp_path)
    with trireme.offload_activations(model, layers=[model], min_bytes=1, store=disk):
        model(x).sum().backward()
    assert [tuple(shape) for shape, _ in disk.taken] == [(16, 8)] * 3 and disk.loads == [2, 1, 0]
    assert all(torch.equal(parameter.grad, expected) for parameter, expected in zip(model.parameters(), truth))


def test_layers_in_torch_s_checkpoint_wrapper_are_found(tmp_path):
    """As Accelerate wraps them under FSDP2."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, batch, disk = make_model("Llama", {}, use_cache=False), make_batch(), Disk(tmp_path)
    _, (loss, truth) = step(model, batch)
    for place, layer in enumerate(model.model.layers):
        model.model.layers[place] = checkpoint_wrapper(layer)
    with trireme.offload_activations(model, min_bytes=1, store=disk):
        _, (same, found) = step(model, batch)
    assert [tuple(shape) for shape, _ in disk.taken] == [(2, 29, 32)] * 2
    assert same == loss and all(torch.equal(gradient, expected) for gradient, expected in zip(found.values(), truth.values()))


class Saves(torch.autograd.Function):
    """Keeps what it is given for backward, as it lies."""

    @staticmethod
    def forward(ctx, x, *tensors):
        ctx.save_for_backward(*tensors)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Saves.found = ctx.saved_tensors
        return gradient, *[None] * len(ctx.saved_tensors)


def test_views_strides_shared_and_small_tensors(tmp_path):
    base = torch.randn(6, 8)
    weight = torch.nn.Parameter(torch.randn(8, 8))
    tensors = {
        "whole": base,
        "again": base.view(6, 8),
        "columns": base[:, 2:6],
        "transposed": base.T,
        "expanded": base[:, :1].expand(6, 50),
        "expanded middle": base[:, None].expand(6, 5, 8),
        "fp64": torch.randn(5, 7, dtype=torch.float64),
    }
    stay = {
        "parameter": weight,
        "view of a parameter": weight.T,
        "indices": torch.arange(1000),
        "small": torch.randn(4),
        "overlapping": torch.randn(64).as_strided((20, 20), (2, 1)),
    }
    disk = Disk(tmp_path)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return Saves.apply(x, *tensors.values(), *stay.values())

    layer = Layer()
    with trireme.offload_activations(layer, layers=[layer], min_bytes=64, store=disk):
        output = layer(torch.randn(3, requires_grad=True))
    expected = {name: tensor.clone() for name, tensor in {**tensors, **stay}.items()}
    base.zero_()  # what was kept does not depend on it
    output.sum().backward()
    for (name, tensor), original, found in zip(expected.items(), (*tensors.values(), *stay.values()), Saves.found):
        assert found.shape == original.shape and found.stride() == original.stride() and found.dtype == original.dtype, name
        assert torch.equal(found, tensor) or name in stay, name
        assert (found.data_ptr() == original.data_ptr()) == (name in stay), name
    assert [tuple(shape) for shape, _ in disk.taken] == [(6, 8), (6, 4), (8, 6), (6, 1), (6, 1, 8), (5, 7)]  # "again" is "whole"


def copy_of(tensor):
    copy = tensor.clone()
    return lambda: copy


def test_a_storage_at_the_same_address_is_not_taken_for_another():
    offload = _Offload(copy_of, 1)
    packed = []
    for value in range(50):
        tensor = torch.full((256,), float(value))
        packed.append(offload.pack(tensor, set()))
        del tensor
    changed = torch.zeros(4)
    first = offload.pack(changed, set())
    changed += 1
    assert offload.pack(changed, set()) is not first
    assert [offload.unpack(kept)[0].item() for kept in packed] == list(range(50))


def test_the_earlier_tensor_is_fetched_while_one_is_used():
    """Backward goes from the last to the first: the order in which a store that copies in the background is asked."""
    order = []

    class Load:
        def __init__(self, tensor):
            self.tensor = tensor.clone()

        def begin(self):
            order.append(("begin", self.tensor[0].item()))

        def __call__(self):
            order.append(("load", self.tensor[0].item()))
            return self.tensor

    offload = _Offload(Load, 1)
    packed = [offload.pack(torch.full((4,), float(value)), set()) for value in range(3)]
    while packed:
        offload.unpack(packed.pop())
    assert order == [("load", 2), ("begin", 1), ("load", 1), ("begin", 0), ("load", 0)]


def test_beside_tiles_and_no_logits(tmp_path):
    model, batch = make_model("Gemma2", dict(final_logit_softcapping=2.0)), make_batch()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    helpers = trireme.tile_mlp(model, tokens_per_tile=8), trireme.fused_loss(model, tokens_per_tile=8)
    with helpers[0], helpers[1]:
        _, (loss, truth) = step(model, batch)
        with trireme.offload_activations(model, min_bytes=1, store=Disk(tmp_path)):
            _, (same, found) = step(model, batch)
    assert same == loss and all(torch.equal(found[name], truth[name]) for name in truth)


def test_what_is_refused_is_named(tmp_path):
    model = make_model("Llama", {})
    with pytest.raises(trireme.ConfigError, match="on a CPU its memory is the host's"), trireme.offload_activations(model):
        pass
    store = Disk(tmp_path)
    with pytest.raises(trireme.ConfigError, match="give layers"), trireme.offload_activations(torch.nn.Linear(2, 2), store=store):
        pass
    assert _dense(torch.zeros(3, 1).expand(3, 4)).shape == (3, 1)


@pytest.mark.parametrize("elements", [1, 1000, (1 << 19) + 1, 20_000 * 4096, 33_554_431])
def test_pinned_memory_is_cut_so_that_powers_of_two_lose_less_than_a_piece(elements):
    sizes = piece_sizes(elements, 2)
    assert sum(sizes) == elements
    pinned = sum(1 << (2 * size - 1).bit_length() for size in sizes)
    assert pinned - 2 * elements < SMALLEST_PIECE_BYTES


def test_pinned_memory_gives_a_tensor_back_in_step_with_the_computation(monkeypatch):
    """Streams and pinned memory, which a CPU has not, are stand-ins that write down what they are told."""
    tensor = torch.arange(900_003.0).view(3, -1)  # of 2 MiB, 1 MiB and an odd rest
    expected, told = tensor.clone(), []
    empty, copy = torch.empty, torch.Tensor.copy_

    class Stream:
        def __init__(self, _device, name="side"):
            self.name = name

        def wait_stream(self, other):
            told.append(f"{self.name} waits for {other.name}")

    current = [Stream(tensor.device, "main")]

    @contextlib.contextmanager
    def within(stream):
        current.append(stream)
        yield
        current.pop()

    def told_empty(*size, pin_memory=False, **options):
        told.extend(["pinned"] * pin_memory)
        return empty(*size, **options)

    def told_copy(to, source, non_blocking=False):
        told.append(f"{current[-1].name} copies")
        return copy(to, source)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch, "empty", told_empty)
    monkeypatch.setattr(torch.Tensor, "copy_", told_copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda of, stream: told.append((stream.name, "uses", of.data_ptr())))
    load = PinnedHost()(tensor)
    assert told == ["pinned"] * 3 + ["side waits for main"] + ["side copies"] * 3 + [("side", "uses", tensor.data_ptr())]
    tensor.zero_()
    for _ in range(2):
        told.clear()
        load.begin()
        back = load()
        assert told == ["side waits for main"] + ["side copies"] * 3 + [("side", "uses", back.data_ptr()), "main waits for side"]
        assert torch.equal(back, expected)


def test_where_pinned_memory_ends_the_host_is_named_and_not_the_gpu(monkeypatch):
    empty, left = torch.empty, [1 << 20, 1 << 20]

    def pinned_twice(*size, pin_memory=False, **options):
        if pin_memory and not left:
            raise RuntimeError(refusal)
        if pin_memory:
            left.pop()
        return empty(*size, **options)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: types.SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda of, stream: None)
    monkeypatch.setattr(torch, "empty", pinned_twice)
    store, refusal = PinnedHost(), "CUDA error: out of memory"
    kept, dropped = store(torch.zeros(1 << 18)), store(torch.zeros(1 << 18))
    del dropped
    with pytest.raises(trireme.ConfigError, match=r"pinned host memory is exhausted, not the GPU's: got none for 2097152 bytes .* beside 1048576 bytes of activations .*store="):
        store(torch.zeros(1 << 19))
    refusal = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        store(torch.zeros(1 << 19))
    assert kept.pinned_bytes == 1 << 20
