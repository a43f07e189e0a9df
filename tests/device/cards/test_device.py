"""Cards: number, choice, properties, and how tensors and modules get to them."""

import ast
import threading
from pathlib import Path

import pytest
import torch


def test_number_of_cards():
    assert torch.vdev.is_available()
    assert torch.vdev.device_count() == 8 == torch.accelerator.device_count()
    assert torch.accelerator.current_accelerator() == torch.device("vdev")
    assert torch.get_device_module("vdev") is torch.vdev


@pytest.mark.parametrize(
    ("environment", "count", "physical"),
    [
        ({"VDEV_DEVICE_COUNT": "3"}, 3, [0, 1, 2]),
        ({"VDEV_DEVICE_COUNT": "4", "VDEV_VISIBLE_DEVICES": "2,0"}, 2, [2, 0]),
        ({"VDEV_DEVICE_COUNT": "4", "VDEV_VISIBLE_DEVICES": "1,9,0"}, 1, [1]),
        ({"VDEV_VISIBLE_DEVICES": ""}, 0, []),
    ],
)
def test_visible_cards(run_python, environment, count, physical):
    result = run_python(
        "import torch, vccl\n"
        "print(torch.vdev.device_count(), torch.vdev.is_available(),"
        " [torch.vdev.get_device_properties(i).physical_index for i in range(torch.vdev.device_count())])",
        **environment,
    )
    assert result.stdout.strip() == f"{count} {count > 0} {physical}"


def test_current_card():
    torch.vdev.set_device(3)
    assert torch.vdev.current_device() == 3 == torch.accelerator.current_device_index()
    assert torch.empty(1, device="vdev").device == torch.device("vdev:3")
    torch.vdev.set_device("vdev:2")
    torch.vdev.set_device(-1)
    assert torch.vdev.current_device() == 2
    torch.accelerator.set_device_index(1)
    assert torch.vdev.current_device() == 1
    with torch.vdev.device(5):
        assert torch.vdev.current_device() == 5
        with torch.vdev.device(None), torch.vdev.device(-1):
            assert torch.vdev.current_device() == 5
        with torch.vdev.device("vdev:6"):
            assert torch.vdev.current_device() == 6
        assert torch.vdev.current_device() == 5
    assert torch.vdev.current_device() == 1
    with torch.vdev.device_of(torch.empty(1, device="vdev:4")):
        assert torch.vdev.current_device() == 4
    with torch.vdev.device_of(torch.empty(1)):
        assert torch.vdev.current_device() == 1
    with torch.accelerator.device_index(7):
        assert torch.vdev.current_device() == 7
    assert torch.vdev.current_device() == 1


def test_current_card_belongs_to_the_thread():
    torch.vdev.set_device(3)
    seen = []

    def look():
        seen.append(torch.vdev.current_device())
        torch.vdev.set_device(5)
        seen.append(torch.empty(1, device="vdev").get_device())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [0, 5]
    assert torch.vdev.current_device() == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.vdev.set_device(8),
        lambda: torch.empty(1, device="vdev:8"),
        lambda: torch.empty(0, device="vdev:8"),
        lambda: torch.empty_strided((2,), (1,), device="vdev:99"),
        lambda: torch.vdev.synchronize(8),
        lambda: torch.vdev.get_device_properties(8),
        lambda: torch.vdev.memory_allocated(8),
        lambda: torch.vdev.current_stream(8),
        lambda: torch.vdev.default_stream(8),
        lambda: torch.vdev.get_device_capability(8),
        lambda: torch.vdev.mem_get_info(8),
        lambda: torch.vdev.reset_peak_memory_stats(8),
        lambda: torch.vdev.get_rng_state(8),
        lambda: torch.Generator("vdev:8"),
        lambda: torch.Stream("vdev:8"),
        lambda: torch.accelerator.set_device_index(8),
    ],
)
def test_a_card_that_does_not_exist(use):
    torch.empty(1, device="vdev")  # before any card is used there are no figures to ask for
    with pytest.raises(RuntimeError, match=r"8|99") as error:
        use()
    # It says how many cards there are, and what decides that.
    text = str(error.value)
    assert "there are 8 vdev cards (VDEV_DEVICE_COUNT" in text
    # What PyTorch's tests of accelerators look for, and CUDA's words.
    assert "The device index is out of range" in text and "invalid device ordinal" in text
    assert torch.vdev.current_device() == 0


def test_a_device_of_another_type():
    with pytest.raises(ValueError, match="vdev"):
        torch.vdev.set_device("cpu")
    with pytest.raises(ValueError, match="index"):
        torch.vdev.set_device("vdev")


@pytest.mark.parametrize("device", [1.5, torch.float32, [0], torch.empty(1)])
def test_what_is_no_device(device):
    for use in (torch.vdev.set_device, torch.vdev.Stream, torch.vdev.memory_allocated, torch.vdev.device):
        with pytest.raises(TypeError, match=f"device must be .*, got {type(device).__name__}"):
            use(device)


def test_properties_are_those_of_cuda(run_python):
    """Every property of torch.cuda's class is there, as torch's stub names them."""
    stub = ast.parse((Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text())
    described = [node for node in stub.body if getattr(node, "name", "") == "_CudaDeviceProperties"]
    named = {line.target.id for line in described[0].body if isinstance(line, ast.AnnAssign)}
    properties = torch.vdev.get_device_properties(1)
    assert "warp_size" in named and all(hasattr(properties, name) for name in named)
    assert properties.uuid != torch.vdev.get_device_properties(0).uuid
    assert properties == torch.vdev.get_device_properties(1)
    printed = "import torch; p = torch.vdev.get_device_properties(0); print(p.L2_cache_size >> 20, p.name)"
    assert run_python(printed, VDEV_PROFILE="h100-80g").stdout.startswith("50 NVIDIA H100")


def test_properties():
    properties = torch.vdev.get_device_properties(2)
    assert properties.total_memory == 2 << 30
    assert properties.multi_processor_count >= 1
    assert properties.physical_index == 2
    assert properties.name == torch.vdev.get_device_name("vdev:2") != ""
    assert "MB" in repr(properties)
    assert torch.vdev.get_device_capability(2) == (1, 0) == (properties.major, properties.minor)
    assert torch.vdev.is_bf16_supported()
    assert torch.bfloat16 in torch.vdev.get_amp_supported_dtype()
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.float8_e4m3fn in types and torch.complex64 in types and torch.qint8 not in types


def test_the_dtypes_of_a_card_can_be_copied():
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    for dtype in types:
        for values in (torch.empty(4, dtype=dtype), torch.empty(4, 2, dtype=dtype)[:, 0]):
            there = values.to("vdev")
            assert there.clone().cpu().dtype == there.to("vdev:1").cpu().dtype == dtype
    missing = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)}
    assert missing.isdisjoint(types)
    for dtype in missing:
        with pytest.raises(RuntimeError, match="copy"):
            torch.empty(4, dtype=dtype).to("vdev")


def test_empty_tensors():
    x = torch.empty(2, 3, dtype=torch.float64, device="vdev:1")
    assert x.is_vdev and x.device == torch.device("vdev", 1) and x.get_device() == 1
    assert x.is_contiguous() and x.dtype == torch.float64
    y = torch.empty(2, 3, 4, 5, device="vdev", memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    z = torch.empty_strided((3, 2), (1, 3), device="vdev")
    assert z.stride() == (1, 3) and z.untyped_storage().nbytes() == 24
    assert torch.empty_like(x).device == x.device
    assert torch.empty(0, 5, device="vdev").shape == (0, 5)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(1, device="vdev", pin_memory=True)


def test_views_share_memory():
    x = torch.empty(4, 6, device="vdev")
    for view in (
        x.view(6, 4),
        x.t(),
        x.reshape(2, 12),
        x.as_strided((2, 2), (6, 1)),
        x.unfold(1, 2, 2),
        x.expand(3, 4, 6),
        x.view(torch.int32),
    ):
        assert view.data_ptr() == x.data_ptr() and view.device == x.device
    assert x[2:].data_ptr() == x.data_ptr() + 2 * 6 * 4
    c = torch.empty(4, dtype=torch.complex64, device="vdev")
    assert torch.view_as_real(c).shape == (4, 2)
    assert torch.view_as_complex(torch.view_as_real(c)).data_ptr() == c.data_ptr()


def test_resize_and_set():
    x = torch.empty(4, device="vdev")
    x.copy_(torch.arange(4.0))
    x.resize_(8)
    assert x.shape == (8,) and x[:4].tolist() == [0, 1, 2, 3]
    pointer = x.data_ptr()
    x.resize_(2, 3)
    assert x.data_ptr() == pointer and x.tolist()[0] == [0, 1, 2]
    y = torch.empty(0, device="vdev")
    y.set_(x.untyped_storage(), 1, (2,), (2,))
    assert y.tolist() == [1, 3]
    z = torch.empty(0, device="vdev").set_(x)
    assert z.shape == (2, 3) and z.data_ptr() == x.data_ptr()
    w = torch.empty(0, device="vdev").set_(x.untyped_storage())
    assert w.shape == (8,)
    w.set_()
    assert w.shape == (0,) and w.device == x.device
    with pytest.raises(RuntimeError):
        y.set_(torch.empty(3).untyped_storage())


def test_ways_to_a_card():
    x = torch.arange(6.0).reshape(2, 3)
    for y in (x.vdev(), x.to("vdev"), x.vdev(0), x.to(torch.device("vdev:0")), x.to(device=0)):
        assert y.device == torch.device("vdev:0") and torch.equal(y.cpu(), x)
    y = x.vdev(2)
    assert y.get_device() == 2
    assert torch.equal(y.to("vdev:3").cpu(), x)
    assert y.vdev(2) is y
    assert not x.is_vdev


def test_modules():
    model = torch.nn.Linear(3, 2)
    weight = model.weight
    expected = weight.detach().clone()
    model.vdev(1)
    assert model.weight.device == torch.device("vdev:1")
    assert torch.equal(model.weight.detach().cpu(), expected)
    model.to("cpu")
    assert torch.equal(model.weight.detach(), expected)


def test_parameter_data_can_change_device():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    parameter.data = parameter.data.to("vdev")
    assert parameter.device.type == "vdev"
    parameter.data = torch.ones(3)
    assert parameter.device.type == "cpu" and parameter.tolist() == [1, 1, 1]


def test_storages():
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage().vdev(1)
    assert storage.is_vdev and storage.device == torch.device("vdev:1")
    assert storage.vdev(1) is storage
    assert storage.cpu().tolist() == [0, 1, 2, 3]


def test_dlpack():
    x = torch.arange(4.0).to("vdev:1")
    y = torch.from_dlpack(x)
    assert y.device == x.device and y.data_ptr() == x.data_ptr()
    assert torch.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]


def test_deterministic_fill():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(5, device="vdev").isnan().all().item()
        x = torch.ones(2, device="vdev").resize_(4)
        assert x[:2].tolist() == [1, 1] and x[2:].isnan().all().item()
        assert torch.empty(2, dtype=torch.int32, device="vdev").tolist() == [2**31 - 1] * 2
    finally:
        torch.use_deterministic_algorithms(False)


def test_lazy_calls_are_made():
    called = []
    torch.vdev._lazy_call(lambda: called.append("plain"))
    torch.vdev._lazy_call(lambda: called.append("seed"), seed=True)
    torch.vdev._lazy_call(lambda: called.append("seed_all"), seed_all=True)
    assert called == ["plain", "seed", "seed_all"]
