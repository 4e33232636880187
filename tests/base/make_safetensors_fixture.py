#!/usr/bin/env python3
"""Writes tests/base/fixtures/by_python.safetensors with the format's own library (the output is committed).

    .deps/python/bin/python tests/base/make_safetensors_fixture.py
"""

import pathlib

import torch
from safetensors.torch import save_file

save_file(
    {
        "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
        "half": torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
        "ids": torch.tensor([[1, -100, 1 << 40]]),
        "flags": torch.tensor([True, False, True]),
        "nothing": torch.empty(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    },
    pathlib.Path(__file__).resolve().parent / "fixtures" / "by_python.safetensors",
    metadata={"format": "pt", "note": "made by Python"},
)
