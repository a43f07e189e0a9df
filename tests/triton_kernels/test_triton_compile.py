"""torch.compile and torch.library take functions that launch kernels."""

import pytest
import small_kernels as kernels
import torch
import triton
from torch.library import triton_op, wrap_triton


def doubled_sum(x, y):
    out = torch.zeros_like(x)
    kernels.add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x * 2, y, out, x.numel(), BLOCK=64)
    return out.relu() + 1


@triton_op("vccl_tests::added", mutates_args={})
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(kernels.add)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


added.register_autograd(lambda context, gradient: (gradient, gradient))


@pytest.fixture(autouse=True)
def without_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_function_launches_a_kernel(card, backend):
    x, y = torch.randn(300, device=card), torch.randn(300, device=card)
    compiled = torch.compile(doubled_sum, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x, y), (x * 2 + y).relu() + 1)
    torch.testing.assert_close(compiled(y, x), (y * 2 + x).relu() + 1)


def test_dynamic_shapes(card):
    x, y = torch.randn(300, device=card), torch.randn(300, device=card)
    compiled = torch.compile(doubled_sum, fullgraph=True, dynamic=True)
    for n in (100, 300, 77):
        torch.testing.assert_close(compiled(x[:n].clone(), y[:n].clone()), (x[:n] * 2 + y[:n]).relu() + 1)


def test_a_kernel_that_chooses_a_configuration(card):
    def tune(x):
        out, runs = torch.zeros_like(x), torch.zeros(1, dtype=torch.int32, device=card)
        kernels.tuned_alone[(2,)](x, out, runs, x.numel())
        return out, runs

    x = torch.zeros(128, device=card)
    out, runs = torch.compile(tune, fullgraph=True)(x)
    assert out.tolist() == [64.0] * 128 and runs.item() == 1


def test_an_operator_of_kernels_and_its_gradient(card):
    x, y = torch.randn(200, device=card), torch.randn(200, device=card)
    assert torch.equal(added(x, y), x + y)
    compiled = torch.compile(lambda x, y: added(x.sin(), y).cos(), fullgraph=True)
    torch.testing.assert_close(compiled(x, y), (x.sin() + y).cos())
    with_gradient, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(with_gradient, y).sum().backward()
    (plain.sin() + y).cos().sum().backward()
    torch.testing.assert_close(with_gradient.grad, plain.grad)


def test_a_kernel_that_writes_its_argument(card):
    def twice(x):
        kernels.double_in_place[(triton.cdiv(x.numel(), 64),)](x, x.numel(), BLOCK=64)
        return x + 1

    x = torch.ones(100, device=card)
    assert torch.compile(twice, fullgraph=True)(x).tolist() == [3.0] * 100
    assert x.tolist() == [2.0] * 100


def test_a_fault_in_a_compiled_function_names_the_line(card):
    def broken(x):
        out = torch.zeros_like(x)
        kernels.copy_without_mask[(4,)](x, out, 100, BLOCK=32)
        return out.sin()

    with pytest.raises(RuntimeError, match=r"copy_without_mask.*reads element 100"):
        torch.compile(broken)(torch.zeros(100, device=card)).tolist()
