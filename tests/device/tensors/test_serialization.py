"""Saving, loading, pickling and copying card tensors."""

import copy
import io
import pickle

import pytest
import torch


def reload(obj, **options):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_tensors_return_to_their_card():
    x = torch.arange(6.0).reshape(2, 3).to("vdev:1")
    y = reload(x)
    assert y.device == x.device and torch.equal(y.cpu(), x.cpu()) and y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cpu", "cpu"),
        ("vdev:2", "vdev:2"),
        ("vdev", "vdev:0"),
        (torch.device("vdev:3"), "vdev:3"),
        ({"vdev:1": "vdev:4"}, "vdev:4"),
        (lambda storage, location: storage, "cpu"),
    ],
)
def test_map_location(target, expected):
    x = torch.arange(6).to("vdev:1")
    y = reload({"x": x}, map_location=target)["x"]
    assert y.device == torch.device(expected) and y.tolist() == [0, 1, 2, 3, 4, 5]


def test_cpu_tensors_can_be_loaded_onto_a_card():
    assert reload(torch.arange(3), map_location="vdev:1").device == torch.device("vdev:1")


def test_views_stay_views():
    x = torch.arange(6.0).to("vdev")
    y, z = reload([x, x[2:]])
    y.fill_(1)
    assert z.tolist() == [1, 1, 1, 1]


def test_modules_and_optimizers():
    model = torch.nn.Linear(3, 2).to("vdev")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, device="vdev")).sum().backward()
    optimizer.step()
    state = reload({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
    other = torch.nn.Linear(3, 2).to("vdev:1")
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(state["optimizer"])
    assert again.state[other.weight]["exp_avg"].device == torch.device("vdev:1")


def test_pickle_and_deepcopy():
    x = torch.arange(3.0).to("vdev:1").requires_grad_()
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.device == x.device and y.requires_grad and y.tolist() == [0, 1, 2]
        assert y.data_ptr() != x.data_ptr()
    model = copy.deepcopy(torch.nn.Linear(2, 2).to("vdev"))
    assert model.weight.device.type == "vdev"


def test_a_missing_card_is_named(run_python, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2, device="vdev:5"), path)
    code = f"import torch, vccl\ntorch.load({str(path)!r})\n"
    result = run_python(code, check=False, VDEV_DEVICE_COUNT="2")
    assert result.returncode != 0 and "5" in result.stderr and "map_location" in result.stderr


def test_metadata_of_tensors():
    """Flags that a program attaches to a card's tensor, which torch.save keeps."""
    x = torch.randn(3, dtype=torch.complex64, device="vdev").conj()
    assert torch._utils.get_tensor_metadata(x) == {"conj": True}
    torch._utils.set_tensor_metadata(x, {"conj": True, "mine": True, "other": False})
    expected = {"conj": True, "mine": True, "other": False}
    assert torch._utils.get_tensor_metadata(x) == expected
    assert torch._utils.get_tensor_metadata(x.detach()) == expected
    stored = io.BytesIO()
    torch.save({"x": x}, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)["x"]
    assert loaded.device == x.device and torch.equal(loaded, x)
    assert torch._utils.get_tensor_metadata(loaded) == expected
    torch._utils.set_tensor_metadata(loaded, {"another": True})
    assert torch._utils.get_tensor_metadata(loaded) == {"conj": True, "another": True}
    assert torch._utils.get_tensor_metadata(x) == expected
