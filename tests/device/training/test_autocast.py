"""torch.autocast("vdev") with CUDA's lists, and the gradient scaler."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

DTYPES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists(dtype):
    values = torch.rand(4, 4, device="vdev")
    narrow = values.to(dtype)
    with torch.autocast("vdev", dtype=dtype):
        # The lower precision.
        assert (values @ values).dtype == dtype
        assert F.linear(values, values).dtype == dtype
        assert F.conv1d(values, values.unsqueeze(-1)).dtype == dtype
        assert F.scaled_dot_product_attention(*(values.view(1, 1, 4, 4),) * 3).dtype == dtype
        # float32.
        for function in (
            torch.exp,
            torch.log,
            lambda x: x.softmax(-1),
            lambda x: x.sum(),
            lambda x: x.pow(2.0),
        ):
            assert function(narrow).dtype == torch.float32
        assert F.layer_norm(narrow, (4,)).dtype == torch.float32
        assert F.mse_loss(narrow, narrow).dtype == torch.float32
        # The widest.
        assert torch.addcmul(values, narrow, narrow).dtype == torch.float32
        # What it is given.
        assert (narrow + narrow).dtype == dtype
        assert (values + values).dtype == torch.float32
        with torch.autocast("vdev", enabled=False):
            assert (values @ values).dtype == torch.float32
    assert (values @ values).dtype == torch.float32
    assert not torch.is_autocast_enabled("vdev")


def test_same_as_explicit_casts():
    torch.manual_seed(0)
    layer = nn.Linear(8, 8).to("vdev")
    inputs = torch.randn(4, 8, device="vdev")
    with torch.autocast("vdev", dtype=torch.bfloat16):
        out = layer(inputs)
    narrow = layer.weight.bfloat16(), layer.bias.bfloat16()
    assert torch.equal(out.cpu(), F.linear(inputs.bfloat16(), *narrow).cpu())
    assert torch.equal(out.cpu(), F.linear(inputs.cpu().bfloat16(), *(x.cpu() for x in narrow)))


def test_float64_stays():
    wide = torch.rand(3, 3, dtype=torch.float64, device="vdev")
    with torch.autocast("vdev", dtype=torch.bfloat16):
        assert (wide @ wide).dtype == torch.float64


def test_bce_is_refused():
    values = torch.rand(3, device="vdev")
    with torch.autocast("vdev", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(values, values)


def test_operators_inside_a_cpu_kernel_are_not_cast():
    """Both autocasts on: the CPU's must not reach into the kernel of a card's operator."""
    values = torch.randn(4, 5, device="vdev")
    with torch.autocast("vdev", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        # The kernel calls matmul(), which is on the CPU's list.
        assert torch.ops.aten._cdist_forward(values.cpu(), values.cpu(), 2.0, 1).dtype == torch.bfloat16
        assert torch.ops.aten._cdist_forward(values, values, 2.0, 1).dtype == torch.float32
        assert (values @ values.t()).dtype == torch.float32


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent(cell):
    layer = cell(4, 4).to("vdev")
    inputs = torch.randn(3, 2, 4, device="vdev")
    with torch.autocast("vdev", dtype=torch.bfloat16):
        out, _ = layer(inputs)
        out.float().sum().backward()
    torch.testing.assert_close(out.float(), layer(inputs)[0], rtol=0.05, atol=0.05)
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fused", [True, False])
def test_training_with_scaler(dtype, fused):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)).to("vdev")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("vdev", init_scale=2.0**10)
    inputs, labels = torch.randn(64, 16, device="vdev"), torch.randint(4, (64,), device="vdev")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("vdev", dtype=dtype):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert scaler.get_scale() == 2.0**10


def test_scaler_skips_a_step_that_overflows():
    parameter = torch.nn.Parameter(torch.ones(3, device="vdev"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("vdev", init_scale=8.0)
    scaler.scale((parameter * torch.tensor([1.0, float("inf"), 1.0], device="vdev")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter.detach().cpu(), torch.ones(3))
    assert scaler.get_scale() == 4.0


def test_amp_of_the_module():
    """torch.vdev.amp has the names of torch.cuda.amp, with the device bound."""
    x = torch.rand(4, 4, device="vdev")
    with torch.vdev.amp.autocast():
        assert (x @ x).dtype == torch.float16
        with torch.vdev.amp.autocast(enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32

    @torch.vdev.amp.autocast(dtype=torch.bfloat16)
    def product() -> torch.Tensor:
        return x @ x

    assert product().dtype == torch.bfloat16


@pytest.mark.parametrize("cast", [None, torch.float32])
def test_custom_functions_of_the_module(cast):
    dtypes = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.vdev.amp.custom_fwd(cast_inputs=cast)
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            dtypes.append((x @ y).dtype)
            return x @ y

        @staticmethod
        @torch.vdev.amp.custom_bwd
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            dtypes.append((gradient @ y.t()).dtype)
            return gradient @ y.t(), x.t() @ gradient

    x = torch.rand(4, 4, device="vdev", requires_grad=True)
    with torch.vdev.amp.autocast(dtype=torch.bfloat16):
        out = Product.apply(x, x)
    out.float().sum().backward()
    expected = torch.bfloat16 if cast is None else torch.float32
    assert dtypes == [expected, expected]


def test_scaler_of_the_module():
    layer = nn.Linear(2, 1).to("vdev")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    scaler = torch.vdev.amp.GradScaler(init_scale=4.0, growth_interval=1)
    assert isinstance(scaler, torch.amp.GradScaler)
    loss = layer(torch.ones(1, 2, device="vdev")).sum()
    scaler.scale(loss).backward()
    assert layer.weight.grad.tolist() == [[4.0, 4.0]]
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(layer.weight.detach(), before - 0.1)
    assert scaler.get_scale() == 8.0
    assert not torch.vdev.amp.GradScaler(enabled=False).is_enabled()


def test_higher_order_operators():
    """torch knows other devices' autocast keys there."""

    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: (x + 1) @ x, (x,))

    def step(total, x):
        return total + x, total @ x

    def scanned(x):
        from torch._higher_order_ops.scan import scan

        return scan(step, x[0], x)[1]

    x = torch.ones(4, 4, device="vdev")
    with torch.autocast("vdev", dtype=torch.bfloat16):
        for call in (branch, torch.compile(branch, fullgraph=True)):
            found = call(x)
            assert found.dtype == torch.bfloat16
            assert found.eq(4).all()
        found = scanned(torch.ones(3, 4, 4, device="vdev"))
    assert found.dtype == torch.bfloat16
    assert found[:, 0, 0].tolist() == [4, 8, 12]
