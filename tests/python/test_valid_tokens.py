"""What an attention_mask says of each token, and what it may not say."""

import pytest
import torch
import trireme
from torch.overrides import TorchFunctionMode
from trireme.valid_tokens import valid_tokens


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_mask_of_ones_and_zeros_is_read_in_any_dtype(dtype):
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert torch.equal(valid_tokens(mask.to(dtype), "here"), mask.bool())
    assert torch.equal(valid_tokens(mask[:1].to(dtype).expand(2, 3), "here"), mask[:1].bool().expand(2, 3))


def test_it_reaches_the_host_in_one_copy_of_a_byte_for_each_token():
    class Copies(TorchFunctionMode):
        bytes_of_each = []

        def __torch_function__(self, function, types, arguments=(), keywords=None):
            if function in (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.to, torch.Tensor.tolist):
                self.bytes_of_each.append(arguments[0].nbytes)
            return function(*arguments, **(keywords or {}))

    with Copies() as copies:
        valid_tokens(torch.ones(2, 50, dtype=torch.int64), "here")
    assert copies.bytes_of_each == [101]


@pytest.mark.parametrize("least", [float("-inf"), torch.finfo(torch.float32).min])
def test_one_that_is_added_to_scores_is_named(least):
    with pytest.raises(trireme.ConfigError, match=r"here: got an attention_mask with values from -.* to 0\.0.*give \(attention_mask == 0\)"):
        valid_tokens(torch.tensor([[0.0, 0.0, least]]), "here")


def test_one_that_numbers_documents_is_named():
    with pytest.raises(trireme.ConfigError, match="values from 0 to 2.*number packed documents"):
        valid_tokens(torch.tensor([[1, 2, 2, 0]]), "here")
