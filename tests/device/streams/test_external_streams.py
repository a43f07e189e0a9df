"""Streams that are known by their pointer."""

import pytest
import torch


@pytest.mark.asynchronous
def test_an_external_stream_is_the_stream(gate):
    stream = torch.vdev.Stream(device="vdev:1")
    for external in (
        torch.vdev.ExternalStream(stream.native_handle, device="vdev:1"),
        torch.vdev.get_stream_from_external(stream.native_handle, "vdev:1"),
    ):
        assert (external.stream_id, external.device) == (stream.stream_id, torch.device("vdev:1"))
        assert isinstance(external, torch.vdev.Stream)
    gate.close(stream)
    with torch.vdev.stream(external):
        x = torch.ones(2, device="vdev:1") + 1
    assert not stream.query()
    gate.open()
    external.synchronize()
    assert stream.query() and x.tolist() == [2, 2]


def test_the_device_is_the_current_one():
    stream = torch.vdev.Stream()
    assert torch.vdev.ExternalStream(stream.native_handle).device == torch.device("vdev:0")
    default = torch.vdev.default_stream()
    assert torch.vdev.get_stream_from_external(default.native_handle, "vdev:0").stream_id == 0


@pytest.mark.parametrize(
    ("pointer", "error", "text"), [("a", TypeError, "an int, got str"), (-1, ValueError, "got -1")]
)
def test_what_is_no_pointer(pointer, error, text):
    for use in (torch.vdev.ExternalStream, torch.vdev.get_stream_from_external):
        with pytest.raises(error, match=f"the pointer of a stream must be .*{text}"):
            use(pointer)


@pytest.mark.parametrize("use", ["set_stream", "stream", "StreamContext"])
def test_what_is_no_stream(use):
    with pytest.raises(TypeError, match=r"stream must be a torch\.Stream or None, got int"):
        getattr(torch.vdev, use)(3)


def test_a_pointer_of_no_stream_is_refused():
    stream = torch.vdev.Stream(device="vdev:1")
    for pointer, device in ((8, "vdev:0"), (stream.native_handle, "vdev:0")):
        with pytest.raises(RuntimeError, match="card 0 has no stream at the address"):
            torch.vdev.ExternalStream(pointer, device=device)
