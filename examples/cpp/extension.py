"""Builds an operator as an extension of torch, and calls it. Run it in examples/custom_op."""

from pathlib import Path

import torch
from torch.utils import cpp_extension

import vccl

folder = Path(vccl.cmake_prefix_path).parents[1]
cpp_extension.load(
    "squared_relu",
    ["squared_relu.cpp"],
    extra_include_paths=[str(folder / "include")],
    extra_ldflags=[f"-L{folder}", "-lvccl", f"-Wl,-rpath,{folder}"],
    is_python_module=False,  # it only registers operators
)

print(torch.ops.examples.squared_relu(torch.tensor([-1.0, 3.0], device="vdev")))
