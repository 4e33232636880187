"""The calls of libtorch's CUDA attention operators that tests/attention plays on the CPU are what the real ones take and
give: their signatures, the layouts of their results by PyTorch's own meta functions, and cuDNN's graphs of them."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from cudnn_graphs import backward_graph, forward_graph

BINARY = Path(os.environ["TRIREME_BINARY"]).parent / "kernels_test"
DTYPES = {"BFloat16": torch.bfloat16, "Half": torch.float16, "Float": torch.float32, "Int": torch.int32,
          "Long": torch.int64, "UInt64": torch.uint64}
OPERATORS = [f"_{kernel}_attention_{pass_}" for kernel in ("flash", "cudnn", "efficient") for pass_ in ("forward", "backward")]


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Of every operator, as tests/kernels/operator_calls.h has them."""
    path = tmp_path_factory.mktemp("calls") / "calls.jsonl"
    subprocess.run([BINARY, "--gtest_filter=CallsAttention.*"], check=True, capture_output=True,
                   env={**os.environ, "TRIREME_OPERATOR_CALLS": str(path)})
    by_operator = {name: [] for name in OPERATORS}
    for line in path.read_text().splitlines():
        call = json.loads(line)
        by_operator[call["operator"]].append(call)
    return by_operator


def is_tensor(value):
    return isinstance(value, dict)


def meta(value):
    if not is_tensor(value):
        return value
    return torch.empty_strided(value["sizes"], value["strides"], dtype=DTYPES[value["dtype"]], device="meta")


def replayed(operator, arguments):
    """The meta function's results."""
    schema = operator._schema
    values = {name: meta(value) for name, value in arguments.items()}
    positional = [values[argument.name] for argument in schema.arguments if not argument.kwarg_only]
    named = {argument.name: values[argument.name] for argument in schema.arguments
             if argument.kwarg_only and values.get(argument.name) is not None}
    return operator(*positional, **named)


def expect_layout(recorded, result):
    """Strides of single entries mean nothing."""
    assert recorded["sizes"] == list(result.shape)
    assert DTYPES[recorded["dtype"]] == result.dtype
    strides = zip(recorded["sizes"], recorded["strides"], result.stride())
    assert all(of_call == of_meta for size, of_call, of_meta in strides if size > 1)


@pytest.mark.parametrize("name", OPERATORS)
def test_calls_have_the_arguments_and_results_of_the_schema(calls, name):
    schema = getattr(torch.ops.aten, name).default._schema
    assert len(calls[name]) > 10
    for call in calls[name]:
        assert list(call["arguments"]) == [argument.name for argument in schema.arguments]
        assert len(call["returns"]) == len(schema.returns)
        for argument in schema.arguments:
            value = call["arguments"][argument.name]
            kind = str(argument.type)
            assert value is not None or kind.startswith("Optional") or kind == "Tensor", argument.name
            assert is_tensor(value) == ("Tensor" in kind) or value is None, argument.name


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward"])
def test_results_are_laid_out_as_the_meta_functions_say(calls, name):
    for call in calls[name]:
        for recorded, result in zip(call["returns"], replayed(getattr(torch.ops.aten, name).default, call["arguments"])):
            if is_tensor(recorded):
                expect_layout(recorded, result)
            else:
                assert recorded == result


# The meta function of _efficient_attention_backward has other arguments than its operator, that of the operator around it,
# which has heads before rows, has not.
def test_gradients_of_efficient_attention_are_laid_out_as_the_meta_function_says(calls):
    for call in calls["_efficient_attention_backward"]:
        values = {name: meta(value) for name, value in call["arguments"].items()}
        grad_out, query, key, value, out = (values[name].transpose(1, 2) for name in ("grad_out_", "query", "key", "value", "out"))
        results = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad_out, query, key, value, None, out, values["logsumexp"], values["philox_seed"], values["philox_offset"], 0.0,
            [True, True, True, False], values["custom_mask_type"] != 0, scale=values["scale"])
        for recorded, result in zip(call["returns"][:3], results):
            expect_layout(recorded, result.transpose(1, 2))


# Meta functions exist for the operators around cuDNN's: they have the same tensors.
def test_cudnns_results_are_laid_out_as_the_meta_functions_say(calls):
    for call in calls["_cudnn_attention_forward"]:
        results = replayed(torch.ops.aten._scaled_dot_product_cudnn_attention.default, call["arguments"])
        for recorded, result in zip(call["returns"][:2], results):
            expect_layout(recorded, result)
    for call in calls["_cudnn_attention_backward"]:
        results = replayed(torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default, call["arguments"])
        for recorded, result in zip(call["returns"], results):
            expect_layout(recorded, result)


def test_cudnn_validates_the_graphs_of_the_calls(calls):
    for call in calls["_cudnn_attention_forward"]:
        forward_graph(call).validate()
    for call in calls["_cudnn_attention_backward"]:
        backward_graph(call).validate()


def test_cudnn_refuses_a_log_sum_exp_of_three_dimensions(calls):
    call = calls["_cudnn_attention_backward"][0]
    lse = call["arguments"]["logsumexp"]
    squeezed = {**lse, "sizes": lse["sizes"][:3], "strides": lse["strides"][:3]}
    with pytest.raises(Exception, match="Stats"):
        backward_graph({**call, "arguments": {**call["arguments"], "logsumexp": squeezed}}).validate()
