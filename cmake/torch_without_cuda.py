"""Lets Python import the torch of .deps/libtorch, PyPI's wheel for CUDA, without the 4 GB of CUDA's libraries that it is linked to.

A .pth file of .deps/python imports this whenever Python starts. Empty libraries of the right names (./dev setup python makes them)
satisfy the loader, and lazy binding looks a function up when it is first called, which nothing on a CPU does."""

import ctypes
import os
import pathlib
import sys

os.environ.setdefault("TORCH_USE_RTLD_GLOBAL", "1")  # torch binds lazily then
for _library in pathlib.Path(sys.prefix, "stand-ins").iterdir():
    ctypes.CDLL(str(_library), mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
