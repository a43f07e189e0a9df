"""Tensor types and storages of torch.vdev, as old programs use them."""

import pytest
import torch

DTYPES = {
    **{"BFloat16": torch.bfloat16, "Bool": torch.bool, "Byte": torch.uint8, "Char": torch.int8},
    **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16},
    **{"Int": torch.int32, "Long": torch.int64, "Short": torch.int16},
}


@pytest.mark.parametrize("kind", DTYPES)
def test_tensor_types(kind):
    made = getattr(torch.vdev, f"{kind}Tensor")
    x = made([[1, 0], [1, 1]])
    assert (x.dtype, x.device) == (DTYPES[kind], torch.device("vdev:0")) and x.sum().item() >= 1
    assert repr(made) == f"<class 'torch.vdev.{kind}Tensor'>"
    assert made(2, 3).shape == (2, 3) and made().shape == (0,)
    assert isinstance(x, made) and not isinstance(x.cpu(), made)
    assert not isinstance(x, torch.vdev.LongTensor if kind != "Long" else torch.vdev.IntTensor)
    assert x.type() == f"torch.vdev.{kind}Tensor"
    for name in (made, x.type()):
        there = torch.ones(2).type(name)
        assert (there.dtype, there.device) == (x.dtype, x.device)


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("kind", [*DTYPES, "ComplexFloat", "ComplexDouble"])
def test_storages(kind):
    made = getattr(torch.vdev, f"{kind}Storage")
    storage = made(3)
    assert len(storage) == 3 and storage.device == torch.device("vdev:0") and storage.dtype == made.dtype
    assert isinstance(storage, made) and not isinstance(storage.cpu(), made)
    assert torch.zeros(2, dtype=made.dtype, device="vdev").storage().type() == f"torch.vdev.{kind}Storage"
