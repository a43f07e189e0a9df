"""Sparse (COO) tensors on a card, compared with the CPU's."""

import copy
import io

import pytest
import torch


def pair(dtype: torch.dtype = torch.float32, dense: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The same uncoalesced tensor on the card and on the CPU."""
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 0, 4]])
    values = torch.arange(1, 5).to(dtype)
    size = (4, 5)
    if dense:
        values, size = values[:, None] * torch.tensor([1, 2], dtype=dtype), (4, 5, 2)
    cpu = torch.sparse_coo_tensor(indices, values, size, check_invariants=True)
    card = torch.sparse_coo_tensor(indices, values, size, device="vdev", check_invariants=True)
    return card, cpu


def same(card: torch.Tensor, cpu: torch.Tensor) -> None:
    assert card.device == torch.device("vdev:0") and card.layout == cpu.layout and card.dtype == cpu.dtype
    if cpu.is_sparse:
        assert card._indices().device == card._values().device == card.device
        assert card.is_coalesced() == cpu.is_coalesced() and card.shape == cpu.shape
        assert torch.equal(card._indices().cpu(), cpu._indices())
        torch.testing.assert_close(card._values().cpu(), cpu._values())
    else:
        torch.testing.assert_close(card.cpu(), cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex64])
@pytest.mark.parametrize("dense", [False, True])
def test_making_and_looking(dtype, dense):
    card, cpu = pair(dtype, dense)
    same(card, cpu)
    for one in (card, cpu):
        assert (one._nnz(), one.sparse_dim(), one.dense_dim(), one.is_coalesced()) == (
            4,
            2,
            int(dense),
            False,
        )
        with pytest.raises(RuntimeError, match="uncoalesced"):
            one.indices()
    same(card.coalesce(), cpu.coalesce())
    same(card.coalesce().indices(), cpu.coalesce().indices())
    same(card.coalesce().values(), cpu.coalesce().values())
    same(card.to_dense(), cpu.to_dense())
    same(torch.sparse_coo_tensor((2, 3), device="vdev"), torch.sparse_coo_tensor((2, 3)))


def test_moving():
    card, cpu = pair()
    same(cpu.to("vdev"), cpu)
    assert card.cpu().device == torch.device("cpu") and torch.equal(card.cpu().to_dense(), cpu.to_dense())
    other = card.to("vdev:1")
    assert other.device == other._values().device == other.clone().device == torch.device("vdev:1")
    assert (other * 2).device == other.coalesce().device == torch.device("vdev:1")
    same(other.to("vdev:0"), cpu)
    target = torch.sparse_coo_tensor((4, 5), device="vdev")
    same(target.copy_(cpu), cpu)
    file = io.BytesIO()
    torch.save(card, file)
    file.seek(0)
    same(torch.load(file), cpu)
    same(copy.deepcopy(card), cpu)


RESULTS = {
    "add": lambda x: x + x.coalesce(),
    "add dense": lambda x: torch.ones_like(x, layout=torch.strided) + x,
    "subtract": lambda x: x - x.clone(),
    "multiply": lambda x: x * 3,
    "divide": lambda x: x / 2,
    "product": lambda x: x * x,
    "negate": lambda x: -x,
    "sqrt": lambda x: x.sqrt(),
    "transpose": lambda x: x.t(),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "cat": lambda x: torch.cat([x, x]),
    "select": lambda x: x.index_select(0, torch.tensor([1, 3], device=x.device)),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: torch.sparse.sum(x, 1),
    "norm": lambda x: x.coalesce().norm(),
    "matmul": lambda x: torch.sparse.mm(x, torch.ones(5, 3, device=x.device)),
    "smm": lambda x: torch.smm(x, torch.ones(5, 3, device=x.device)),
    "sspaddmm": lambda x: torch.sspaddmm(x, x.coalesce(), torch.ones(5, 5, device=x.device)),
    "sparse matmul": lambda x: torch.sparse.mm(x, x.t()),
    "softmax": lambda x: torch.sparse.softmax(x, 1),
    "mask": lambda x: torch.ones(4, 5, device=x.device).sparse_mask(x.coalesce()),
    "half": lambda x: x.half(),
    "zeros": lambda x: torch.zeros_like(x),
    "to_sparse": lambda x: x.to_dense().to_sparse(),
    "to_sparse of one dimension": lambda x: x.to_dense().to_sparse(1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name):
    card, cpu = pair()
    same(RESULTS[name](card), RESULTS[name](cpu))


IN_PLACE = {
    "zero": lambda x: x.zero_(),
    "multiply": lambda x: x.mul_(2),
    "divide": lambda x: x.div_(2),
    "add, with more elements": lambda x: x.add_(torch.ones(4, 5, device=x.device).to_sparse(), alpha=2),
    "out=": lambda x: torch.add(x.clone(), x.clone(), out=x),
    "resize": lambda x: x.sparse_resize_((6, 7), 2, 0),
    "resize and clear": lambda x: x.sparse_resize_and_clear_((6, 7, 2), 2, 1),
    "resize as": lambda x: x.resize_as_sparse_(torch.ones(7, 8, device=x.device).to_sparse()),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    card, cpu = pair()
    assert IN_PLACE[name](card) is card
    IN_PLACE[name](cpu)
    same(card, cpu)
    same(card.coalesce(), cpu.coalesce())


def test_dense_result_in_place():
    card, cpu = pair()
    dense = torch.ones(4, 5, device="vdev")
    assert dense.add_(card, alpha=-2) is dense
    same(dense, torch.ones(4, 5).add_(cpu, alpha=-2))


def test_parts_share_memory():
    card, _ = pair()
    card._values().fill_(7)
    assert card.to_dense()[3, 4].item() == 7
    values = card._values()
    card.div_(2)
    assert values[3].item() == 3.5 and values.data_ptr() == card._values().data_ptr()


def test_after_the_stream():
    card, _ = pair()
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        card._values().copy_(torch.full((4,), 5.0).pin_memory(), non_blocking=True)
        dense = card.to_dense()
    assert dense[1, 0].item() == 10


def test_memory_is_given_back():
    card, _ = pair()
    card.coalesce().add(card)
    torch.vdev.synchronize()
    before = torch.vdev.memory_allocated()
    for _ in range(10):
        (card.coalesce() + card).to_dense()
        card.clone().add_(card.coalesce()).zero_()
    torch.vdev.synchronize()
    assert torch.vdev.memory_allocated() == before


def test_printing():
    card, _ = pair()
    text = repr(card)
    assert "vdev:0" in text and "nnz=4" in text and "sparse_coo" in text


def test_errors():
    card, cpu = pair()
    for left, right in ((card, cpu), (cpu, card), (card, card.to("vdev:1"))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            left + right
    with pytest.raises(NotImplementedError, match="vdev"):
        card.cumsum(0)
    with pytest.raises(RuntimeError, match="size is inconsistent"):
        torch.sparse_coo_tensor([[9]], [1.0], (3,), device="vdev", check_invariants=True)


def test_gradients():
    gradients = []
    for one in pair():
        one.requires_grad_()
        weight = torch.arange(10.0, device=one.device).view(5, 2).requires_grad_()
        ((one * 2).to_dense().square().sum() + torch.sparse.mm(one, weight).square().sum()).backward()
        gradients.append((one.grad, weight.grad))
    assert gradients[0][0].is_sparse
    same(gradients[0][0].to_dense(), gradients[1][0].to_dense())
    same(gradients[0][1], gradients[1][1])
    for device in ("vdev", "cpu"):
        values = torch.ones(2, device=device, requires_grad=True)
        indices = torch.tensor([[0, 2]], device=device)
        torch.sparse_coo_tensor(indices, values, (3,)).to_dense().mul(3).sum().backward()
        assert values.grad.tolist() == [3, 3]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_embedding(name, kind):
    torch.manual_seed(0)
    cpu = kind(10, 4, sparse=True)
    card = copy.deepcopy(cpu).to("vdev")
    optimizers = [OPTIMIZERS[name](list(model.parameters())) for model in (card, cpu)]
    for step in range(3):
        words = torch.tensor([[1, 2, 1], [9, step, 3]])
        for model, optimizer in zip((card, cpu), optimizers, strict=True):
            optimizer.zero_grad()
            # Twice: the second gradient is added to the first.
            for _ in range(2):
                model(words.to(model.weight.device)).square().sum().backward()
            optimizer.step()
        same(card.weight.grad.coalesce(), cpu.weight.grad.coalesce())
        same(card.weight.detach(), cpu.weight.detach())
