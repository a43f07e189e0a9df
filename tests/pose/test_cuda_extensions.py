"""Extensions in CUDA C++ that are built as their own pages say. habits_cuda_extensions.py has the kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.daily

SETUP = """
import setuptools
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
extension = CUDAExtension(
    "mine", ["mine.cu"], extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O2", "-Xfatbin", "-compress-all"]}
)
setuptools.setup(name="mine", ext_modules=[extension], cmdclass={"build_ext": BuildExtension})
"""
MINE = """
#include <Python.h>
#include <cuda_runtime.h>
__global__ void fill(float* x, float value) { x[threadIdx.x] = value; }
static PyObject* run(PyObject*, PyObject* args) {
  unsigned long long x;
  if (!PyArg_ParseTuple(args, "K", &x)) return NULL;
  fill<<<1, 4>>>(reinterpret_cast<float*>(x), 2.5f);
  return PyLong_FromLong(cudaGetLastError());
}
static PyMethodDef methods[] = {{"run", run, METH_VARARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "mine", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_mine() { return PyModule_Create(&module); }
"""
USE = "import torch, mine; x = torch.zeros(4, device='cuda'); print(mine.run(x.data_ptr()), x.tolist())"

INLINE = """
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import load_inline

names = ["gelu", "sums", "habits"]
declarations = [
    "torch::Tensor gelu(const torch::Tensor& x, const torch::Tensor& bias);",
    "torch::Tensor sums(const torch::Tensor& x);",
    "std::vector<int64_t> habits();",
]
module = load_inline(
    "inline_extension", cpp_sources=declarations, cuda_sources=Path(sys.argv[1]).read_text(), functions=names,
    build_directory=sys.argv[2],
)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3)):
    x, bias = torch.randn(33, 40, device="cuda", dtype=dtype), torch.randn(40, device="cuda", dtype=dtype)
    wanted = torch.nn.functional.gelu((x + bias).double())
    torch.testing.assert_close(module.gelu(x, bias).double(), wanted, rtol=tolerance, atol=tolerance)
x = torch.randn(17, 1000, device="cuda")
torch.testing.assert_close(module.sums(x), x.sum(1), rtol=1e-4, atol=1e-4)
try:
    module.gelu(torch.zeros(3), torch.zeros(3))
except RuntimeError as error:
    assert "x must be a CUDA tensor" in str(error)
else:
    raise AssertionError("a tensor of the CPU was taken")
print(module.habits())
"""


@pytest.fixture
def run(posed_environment):
    """run(*arguments, cwd) returns the output of Python with these arguments, in pose."""

    def call(*arguments: object, cwd: Path | None = None) -> str:
        process = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, **posed_environment},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=1500,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    return call


def test_a_setup_py_with_cuda_extension(run, tmp_path):
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "mine.cu").write_text(MINE)
    run("setup.py", "build_ext", "--inplace", cwd=tmp_path)
    assert run("-c", USE, cwd=tmp_path).endswith("0 [2.5, 2.5, 2.5, 2.5]\n")


def test_load_inline(run, tmp_path):
    """torch_extension.cu uses torch's own headers of CUDA."""
    (tmp_path / "inline.py").write_text(INLINE)
    source = Path(__file__).with_name("torch_extension.cu")
    assert run(tmp_path / "inline.py", source, tmp_path).endswith("[1, 0, 0, 0, 1, 2, 1, 1, 1, 1]\n")
