"""Sparse CSR, CSC, BSR and BSC tensors on a card, compared with the CPU's."""

import pickle

import pytest
import torch
from layouts import compare, gradient, saved
from torch.nn import functional

DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 3], [4, 0, 0, 0], [0, 5, 0, 6]])
LAYOUTS = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "bsr": torch.sparse_bsr, "bsc": torch.sparse_bsc}
ROWS, COLUMNS, BLOCKS = ("csr", "bsr"), ("csc", "bsc"), ("bsr", "bsc")
ALL, UNBLOCKED = (*ROWS, *COLUMNS), ("csr", "csc")


def make(name: str, device: str, dense: torch.Tensor = DENSE) -> torch.Tensor:
    blocks = (2, 2) if name in BLOCKS else None
    return dense.to(device).to_sparse(layout=LAYOUTS[name], blocksize=blocks)


def indices(x: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.crow_indices(), x.col_indices()) if name in ROWS else (x.ccol_indices(), x.row_indices())


def rebuilt(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.sparse_compressed_tensor(
        *indices(x, name), x.values(), x.shape, layout=x.layout, check_invariants=True
    )


def ones(*shape: int, like: torch.Tensor) -> torch.Tensor:
    return torch.ones(*shape, device=like.device)


# What torch's CPU has, with the layouts for which it does.
LOOKS = {
    "make": (ALL, lambda x, name: x),
    "indices": (ALL, lambda x, name: [*indices(x, name), x.values()]),
    "numbers": (ALL, lambda x, name: [x._nnz(), x.sparse_dim(), x.dense_dim(), *x.shape]),
    "print": (ALL, lambda x, name: repr(x)),
    "rebuild": (ALL, rebuilt),
    "clone": (ALL, lambda x, name: x.clone()),
    "zeros_like": (ALL, lambda x, name: torch.zeros_like(x)),
    "move and return": (ALL, lambda x, name: x.cpu().to(x.device)),
    "save": (ALL, lambda x, name: saved(x)),
    "pickle": (ALL, lambda x, name: pickle.loads(pickle.dumps(x))),
    "to_dense": (ALL, lambda x, name: x.to_dense()),
    "to COO": (ALL, lambda x, name: x.to_sparse_coo()),
    "to CSR": (UNBLOCKED, lambda x, name: x.to_sparse_csr()),
    "to CSC": (UNBLOCKED, lambda x, name: x.to_sparse_csc()),
    "to BSR": (ALL, lambda x, name: x.to_sparse_bsr((2, 2))),
    "to BSC": (ALL, lambda x, name: x.to_sparse_bsc((2, 2))),
    "select": (UNBLOCKED, lambda x, name: x[0]),
    "transpose": (ALL, lambda x, name: x.transpose(0, 1)),
    "dtype": (ALL, lambda x, name: x.double()),
    "mask": (ALL, lambda x, name: ones(4, 4, like=x).sparse_mask(x)),
}
SUMS = {
    "multiply": (ALL, lambda x, name: x * 2),
    "negate": (ALL, lambda x, name: -x),
    "sin": (ALL, lambda x, name: x.sin()),
    "relu": (ALL, lambda x, name: x.relu()),
    "sum": (ALL, lambda x, name: x.sum()),
    "in place": (ALL, lambda x, name: x.clone().copy_(x * 3).zero_()),
    "copy_": (ALL, lambda x, name: x.clone().copy_(x * 3)),
    "add": (("csr",), lambda x, name: x + x),
    "add to dense": (UNBLOCKED, lambda x, name: torch.add(ones(4, 4, like=x), x)),
    "product": (("csr",), lambda x, name: x * x),
    "matmul": (("csr", "csc", "bsr"), lambda x, name: x @ ones(4, 3, like=x)),
    "vector": (("csr", "csc", "bsr"), lambda x, name: x @ ones(4, like=x)),
    "addmm": (UNBLOCKED, lambda x, name: torch.addmm(ones(4, 4, like=x), x, ones(4, 4, like=x), beta=2)),
    "sparse product": (UNBLOCKED, lambda x, name: x @ x),
    "dense times sparse": (UNBLOCKED, lambda x, name: ones(2, 4, like=x) @ x),
    "linear": (("csr", "csc", "bsr"), lambda x, name: functional.linear(ones(2, 4, like=x), x)),
    "sampled_addmm": (
        ("csr",),
        lambda x, name: torch.sparse.sampled_addmm(x, ones(4, 3, like=x), ones(3, 4, like=x)),
    ),
    "reduce": (("csr",), lambda x, name: torch.sparse.mm(x, ones(4, 4, like=x), "mean")),
}
GRADIENTS = {
    "of the sparse matrix": (("csr",), lambda x: x.to_dense().t() @ x.to_dense()),
    "of values": (ALL, lambda x: (x * 2).to_dense()),
}


def cases(operations):
    return [(operation, name) for operation, (names, _) in operations.items() for name in names]


@pytest.mark.parametrize(("operation", "name"), cases(LOOKS | SUMS))
def test_operation(operation, name):
    function = (LOOKS | SUMS)[operation][1]
    compare(lambda device: function(make(name, device), name))


@pytest.mark.parametrize(("operation", "name"), cases(GRADIENTS))
def test_gradient_of_conversion(operation, name):
    def run(device):
        leaf = DENSE.clone().to(device).requires_grad_()
        return gradient(leaf, GRADIENTS[operation][1](make(name, device, leaf)))

    compare(run)


def test_gradients_of_a_product():
    def of_dense(device):
        leaf = torch.ones(4, 3, device=device, requires_grad=True)
        return gradient(leaf, make("csr", device) @ leaf)

    def of_sparse(device):
        leaf = make("csr", device).requires_grad_()
        return gradient(leaf, leaf @ torch.ones(4, 3, device=device))

    compare(of_dense)
    compare(of_sparse)


@pytest.mark.parametrize("name", ALL)
def test_moving(name):
    on_cpu = make(name, "cpu")
    for device in ("vdev:0", "vdev:1"):
        moved = on_cpu.to(device)
        parts = (*indices(moved, name), moved.values(), moved.clone().values(), (moved * 2).values())
        assert moved.device == torch.device(device) and {part.device for part in parts} == {moved.device}
        assert torch.equal(moved.to_dense().cpu(), DENSE)
    assert torch.equal(on_cpu.to("vdev:1").to("vdev:0").to_dense().cpu(), DENSE)
    assert saved(on_cpu, map_location="vdev").device == torch.device("vdev:0")


def test_values_are_a_view():
    x = make("csr", "vdev")
    x.values().mul_(2)
    assert torch.equal(x.to_dense().cpu(), DENSE * 2)


def test_memory_is_given_back():
    torch.vdev.synchronize()
    before = torch.vdev.memory_allocated()
    x = make("csr", "vdev") @ make("csr", "vdev")
    assert torch.vdev.memory_allocated() > before
    del x
    assert torch.vdev.memory_allocated() == before


def test_what_the_cpu_has_not_is_refused_by_name():
    with pytest.raises(RuntimeError, match="SparseCsr"):
        torch.linalg.inv(make("csr", "vdev"))


def test_a_product_with_a_reduction_has_no_gradient():
    """The CPU's kernel would read beyond the end in the backward."""
    sparse = torch.eye(3, device="vdev").to_sparse_csr().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"torch\.sparse\.mm\(reduce=\) works on the CPU alone"):
        torch.sparse.mm(sparse, torch.ones(3, 2, device="vdev"), "amax")
