"""trireme.cross_entropy against PyTorch's: value, gradient, and what it keeps for backward."""

import pytest
import torch
from trireme import cross_entropy

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 5e-3}  # of bf16: its gradient's rounding


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tile", [1, 40, 1 << 20])
def test_value_and_gradient_are_those_of_pytorch(monkeypatch, dtype, tile):
    monkeypatch.setitem(cross_entropy.TILE_ELEMENTS, "cpu", tile)
    torch.manual_seed(0)
    logits = (4 * torch.randn(2, 7, 13)).to(dtype).requires_grad_()
    targets = torch.randint(13, (2, 7))
    targets[0, 2:5] = targets[1, 6] = -100
    value = cross_entropy.cross_entropy_sum(logits, targets)
    (3 * value).backward()
    exact = logits.detach().double().requires_grad_()
    truth = torch.nn.functional.cross_entropy(exact.flatten(0, 1), targets.flatten(), reduction="sum")
    (3 * truth).backward()
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert abs(value.item() - truth.item()) <= min(TOLERANCE[dtype], 1e-6) * truth.item()
    assert logits.grad.dtype == dtype
    assert (logits.grad.double() - exact.grad).abs().max() <= TOLERANCE[dtype] * exact.grad.abs().max()


def test_without_a_valid_target_value_and_gradient_are_zero():
    logits = torch.randn(1, 3, 5, requires_grad=True)
    value = cross_entropy.cross_entropy_sum(logits, torch.full((1, 3), -100))
    value.backward()
    assert value.item() == 0 and not logits.grad.any()
    assert cross_entropy.cross_entropy_sum(logits[:, :0], torch.zeros(1, 0, dtype=torch.long)).item() == 0


def test_the_logits_are_kept_as_they_are_and_not_a_copy():
    logits, kept = torch.randn(1, 64, 100, dtype=torch.bfloat16, requires_grad=True) * 1, []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        cross_entropy.cross_entropy_sum(logits, torch.zeros(1, 64, dtype=torch.long))
    assert {tensor.untyped_storage().data_ptr() for tensor in kept if tensor.is_floating_point()} == {logits.data_ptr()}
