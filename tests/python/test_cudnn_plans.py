"""cuDNN plans the dense calls of long documents for an H200, without one, with the memory that the forecast counts."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a stand-in for libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "kernels/driver_stand_in.cpp"
    subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", source], check=True)
    return folder


def tensor(sizes, strides, dtype="BFloat16"):
    return {"sizes": sizes, "strides": strides, "dtype": dtype}


def calls_of_document(tokens, heads, kv_heads, width, sample_tokens, sample_heads=None):
    """Forward and backward of a document's square, of q, k and v that lie side by side in their sample, which may have more heads."""
    row = (sample_heads or heads + 2 * kv_heads) * width

    def of_sample(count):
        return tensor([1, count, tokens, width], [sample_tokens * row, width, row, 1])

    def own(count):
        return tensor([1, count, tokens, width], [tokens * count * width, width, count * width, 1])

    q, k, o = of_sample(heads), of_sample(kv_heads), own(heads)
    lse = tensor([1, heads, tokens, 1], [heads * tokens, tokens, 1, 1], "Float")
    inputs = {"query": q, "key": k, "value": k, "is_causal": True, "scale": width ** -0.5}
    return [{"operator": "_cudnn_attention_forward", "arguments": inputs, "returns": [o, lse]},
            {"operator": "_cudnn_attention_backward", "arguments": {**inputs, "out": o, "grad_out": o, "logsumexp": lse},
             "returns": [o, own(kv_heads), own(kv_heads)]}]


def planned_workspaces(driver, calls):
    packages = Path(sysconfig.get_paths()["purelib"])
    libraries = [driver, *packages.glob("nvidia/*/lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    out = subprocess.run([sys.executable, Path(__file__).parent / "cudnn_graphs.py"], input="\n".join(map(json.dumps, calls)),
                         capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))})
    assert out.returncode == 0, out.stderr
    return [int(line) for line in out.stdout.split()]


# trireme/forecast/attention_snapshots.cpp: dq in fp32 and a sum for each query, in blocks of 128 rows, and with grouped heads dk
# and dv of every query head.
def forecast_bytes(tokens, heads, kv_heads, width):
    rows = (tokens + 127) // 128 * 128
    padded = (width + 31) // 32 * 32
    return rows * heads * (padded + 1) * 4 + (0 if heads == kv_heads else 2 * tokens * heads * width * 2)


def test_cudnn_plans_small_and_odd_sizes(driver):
    documents = [(64, 2, 1, 32), (131, 6, 3, 40), (1111, 5, 5, 96)]
    calls = [call for document in documents for call in calls_of_document(*document, sample_tokens=1200)]
    assert len(planned_workspaces(driver, calls)) == 6


def test_cudnn_plans_long_documents_with_the_memory_that_is_forecast(driver):
    documents = [(4096, 32, 8, 128), (4352, 32, 8, 128), (126976, 32, 8, 128), (11776, 4, 1, 128), (4352, 32, 32, 128), (6144, 16, 4, 64)]
    calls = [call for document in documents for call in calls_of_document(*document, sample_tokens=131072)]
    workspaces = planned_workspaces(driver, calls)
    for document, forward, backward in zip(documents, workspaces[::2], workspaces[1::2], strict=True):
        assert forward <= 4096, document
        assert 0 <= backward - forecast_bytes(*document) <= 4096, document


def test_cudnn_plans_a_few_heads_of_a_long_sample_with_their_share_of_the_memory(driver):
    """kernels/backward_heads.h: 128K tokens of 32 and 8 heads are four calls."""
    few = (131072, 8, 2, 128)
    forward, backward = planned_workspaces(driver, calls_of_document(*few, sample_tokens=131072, sample_heads=32 + 2 * 8))
    assert forward <= 4096 and 0 <= backward - forecast_bytes(*few) <= 4096


def test_cudnn_plans_blocks_of_keys_without_memory(driver):
    """kernels/key_blocks.h: 136K tokens in three blocks, the last one shorter."""
    tokens, row = 139264, 48 * 128

    def rows(count, heads, stride):
        return tensor([1, heads, count, 128], [tokens * stride, 128, stride, 1])

    def call(q_rows, k_rows, causal):
        key = rows(k_rows, 8, row)
        return {"operator": "_cudnn_attention_forward",
                "arguments": {"query": rows(q_rows, 32, row), "key": key, "value": key, "is_causal": causal, "scale": 128 ** -0.5},
                "returns": [tensor([1, 32, q_rows, 128], [q_rows * 4096, 128, 4096, 1]), tensor([1, 32, q_rows, 1], [32 * q_rows, q_rows, 1, 1], "Float")]}

    block, last = 46464, 46336
    calls = [call(block, block, True), call(block, block, False), call(last, block, False), call(last, last, True)]
    assert all(0 <= bytes_ <= 4096 for bytes_ in planned_workspaces(driver, calls))
