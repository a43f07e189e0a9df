"""Builds an operator as an extension of torch, and calls it. Run it in examples/custom_op."""

import torch
from torch.utils import cpp_extension

import vccl

cpp_extension.load(
    "squared_relu",
    ["squared_relu.cpp"],
    extra_include_paths=[vccl.include_path],
    extra_ldflags=[f"-L{vccl.library_path}", "-lvccl", f"-Wl,-rpath,{vccl.library_path}"],
    is_python_module=False,  # it only registers operators
)

print(torch.ops.examples.squared_relu(torch.tensor([-1.0, 3.0], device="vdev")))
