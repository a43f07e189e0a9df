"""Layers that reach kernels of their own on vdev: convolutions, attention, dropout, batch norm."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

CONVOLUTIONS = [
    (lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 17)),
    (lambda: nn.Conv1d(4, 8, 3, groups=4, padding="same"), (4, 11)),
    (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 8)),
    (lambda: nn.Conv2d(4, 8, (3, 1), dilation=2, groups=2, bias=False), (2, 4, 9, 8)),
    (lambda: nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), (2, 3, 9, 8)),
    (lambda: nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last), (2, 3, 9, 8)),
    (lambda: nn.Conv3d(2, 4, 3), (2, 2, 5, 6, 7)),
    (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 9)),
    (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 5, 5)),
    (lambda: nn.ConvTranspose3d(2, 4, 2), (1, 2, 3, 4, 5)),
]


def compare(layer: nn.Module, *inputs: torch.Tensor, **tolerance: float) -> None:
    """The layer's results and all gradients, on a card and on the CPU."""
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    found = []
    for device in ("cpu", "vdev"):
        own = copy.deepcopy(layer).to(device)
        moved = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        result = own(*moved)
        results = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        sum((x * x).sum() for x in results).backward()
        gradients = [x.grad for x in (*moved, *own.parameters())]
        found.append(
            [x.detach().cpu() if x is not None else None for x in (*results, *gradients, *own.buffers())]
        )
    torch.testing.assert_close(found[1], found[0], **tolerance)


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolution(case, dtype):
    torch.manual_seed(0)
    make, shape = CONVOLUTIONS[case]
    compare(make().to(dtype), torch.randn(shape, dtype=dtype))


def test_convolution_without_some_gradients():
    weight = torch.randn(4, 3, 3, 3, device="vdev", requires_grad=True)
    inputs = torch.randn(2, 3, 6, 6, device="vdev")
    out = F.conv2d(inputs, weight)
    out.sum().backward()
    expected = torch.autograd.grad(
        F.conv2d(inputs.cpu(), (w := weight.detach().cpu().requires_grad_())).sum(), w
    )[0]
    assert torch.equal(weight.grad.cpu(), expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(causal, dtype):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 33, 16, dtype=dtype) for _ in range(3))
    found = []
    for device in ("cpu", "vdev"):
        inputs = [x.to(device).requires_grad_() for x in (query, key, value)]
        out = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        found.append([out.cpu(), *(x.cpu() for x in torch.autograd.grad(out.float().square().sum(), inputs))])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_attention_takes_the_cpus_flash_kernel():
    inputs = torch.randn(1, 2, 8, 16, dtype=torch.float16, device="vdev", requires_grad=True)
    out = F.scaled_dot_product_attention(inputs, inputs, inputs)
    assert "Flash" in out.grad_fn.name()
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        assert "Flash" not in F.scaled_dot_product_attention(inputs, inputs, inputs).grad_fn.name()


def test_attention_mask_and_module():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    inputs = torch.randn(2, 5, 32)
    compare(layer, inputs, inputs.clone(), inputs.clone())
    query = torch.randn(2, 4, 5, 8)
    mask = torch.rand(5, 5) > 0.3
    mask[:, 0] = True
    expected = F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    moved = query.to("vdev")
    assert torch.equal(
        F.scaled_dot_product_attention(moved, moved, moved, attn_mask=mask.to("vdev")).cpu(), expected
    )


def test_encoder_with_padding_in_inference():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    inputs = torch.randn(2, 5, 16)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU takes nested tensors, with a warning
        expected = encoder(inputs, src_key_padding_mask=padding)
    moved = copy.deepcopy(encoder).to("vdev")
    with torch.no_grad():
        actual = moved(inputs.to("vdev"), src_key_padding_mask=padding.to("vdev")).cpu()
    torch.testing.assert_close(actual[~padding], expected[~padding])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dropout(dtype):
    torch.vdev.manual_seed(5)
    inputs = torch.randn(100, 100, dtype=dtype, device="vdev", requires_grad=True)
    out = F.dropout(inputs, 0.25)
    kept = out != 0
    assert 0.7 < kept.float().mean().item() < 0.8
    torch.testing.assert_close(out[kept], (inputs / 0.75)[kept])
    out.sum().backward()
    assert torch.equal(inputs.grad != 0, kept)
    torch.testing.assert_close(inputs.grad[kept], torch.full_like(inputs.grad, 1 / 0.75)[kept])
    torch.vdev.manual_seed(5)
    torch.randn(100, 100, dtype=dtype, device="vdev")
    assert torch.equal(F.dropout(inputs, 0.25), out)
    assert F.dropout(inputs, 1.0).count_nonzero() == 0
    assert torch.equal(F.dropout(inputs, 0.5, training=False), inputs)


@pytest.mark.parametrize("shape", [(8, 6), (4, 6, 5), (4, 6, 5, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, training):
    torch.manual_seed(0)
    layer = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](6).train(training)
    compare(layer, torch.randn(shape))


@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_sync_batch_norm(parts):
    """The pieces, put together over `parts` pretended ranks, are BatchNorm over the whole batch."""
    torch.manual_seed(0)
    channels, eps, momentum = 6, 1e-5, 0.1
    batch = torch.randn(9, channels, 4, 5, dtype=torch.float64)
    grad = torch.randn_like(batch)
    norm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum).double()
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    whole = batch.clone().requires_grad_()
    weight, bias = norm.weight.detach().to("vdev"), norm.bias.detach().to("vdev")
    expected = norm(whole)
    expected.backward(grad)

    sizes = [9 - 2 * (parts - 1), *[2] * (parts - 1)]
    inputs = [x.to("vdev") for x in batch.split(sizes)]
    grads = [x.to("vdev") for x in grad.split(sizes)]
    stats = [torch.batch_norm_stats(x, eps) for x in inputs]
    counts = torch.tensor([x.numel() // channels for x in inputs], dtype=torch.float64, device="vdev")
    running_mean = torch.zeros(channels, dtype=torch.float64, device="vdev")
    running_var = torch.ones(channels, dtype=torch.float64, device="vdev")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        inputs[0],
        torch.stack([m for m, _ in stats]),
        torch.stack([s for _, s in stats]),
        running_mean,
        running_var,
        momentum,
        eps,
        counts,
    )
    out = torch.cat([torch.batch_norm_elemt(x, weight, bias, mean, invstd, eps) for x in inputs])
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(running_mean.cpu(), norm.running_mean)
    torch.testing.assert_close(running_var.cpu(), norm.running_var)

    reduced = [
        torch.batch_norm_backward_reduce(g, x, mean, invstd, weight, True, True, True)
        for g, x in zip(grads, inputs, strict=True)
    ]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (sum(column) for column in zip(*reduced, strict=True))
    grad_input = torch.cat(
        [
            torch.batch_norm_backward_elemt(g, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts.int())
            for g, x in zip(grads, inputs, strict=True)
        ]
    )
    torch.testing.assert_close(grad_input.cpu(), whole.grad)
    torch.testing.assert_close(grad_weight.cpu(), norm.weight.grad)
    torch.testing.assert_close(grad_bias.cpu(), norm.bias.grad)


def test_losses_and_layers():
    torch.manual_seed(0)
    compare(nn.Embedding(10, 4), torch.tensor([[1, 2], [9, 0]]))
    compare(nn.EmbeddingBag(10, 4, mode="sum"), torch.tensor([[1, 2], [9, 0]]))
    log_probs = torch.randn(20, 3, 6).log_softmax(-1)
    targets, lengths = torch.randint(1, 6, (3, 8)), torch.tensor([8, 5, 3])
    for inputs in (torch.tensor([20, 18, 15]), torch.tensor([20, 20, 20])):
        expected = F.ctc_loss(log_probs, targets, inputs, lengths)
        # Lengths may lie on either side, as with CUDA.
        for device in ("cpu", "vdev"):
            actual = F.ctc_loss(
                log_probs.to("vdev"), targets.to("vdev"), inputs.to(device), lengths.to(device)
            )
            assert torch.equal(actual.cpu(), expected)
    grid = torch.rand(1, 5, 5, 2) * 2 - 1
    image = torch.randn(1, 3, 8, 8)
    expected = F.grid_sample(image, grid, align_corners=False)
    assert torch.equal(F.grid_sample(image.to("vdev"), grid.to("vdev"), align_corners=False).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_of_narrow_numbers_to_float32(function, dtype):
    """Of float16, one operator on CUDA."""
    values, weights = torch.randn(4, 9, dtype=dtype), torch.randn(4, 9)
    results = []
    for device in ("cpu", "vdev"):
        x = values.to(device, copy=True).requires_grad_()
        y = function(x, -1, dtype=torch.float32)
        y.backward(weights.to(device))
        assert y.dtype == torch.float32 and x.grad.dtype == dtype
        results.append((y.detach().cpu(), x.grad.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
