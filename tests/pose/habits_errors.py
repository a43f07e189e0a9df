"""What small questions of CUDA scripts are answered: events, error codes, figures, formats of memory."""

import os
import threading

import pytest
import torch
import torch.cuda.comm


def probe_events_have_a_card_once_they_are_recorded():
    event = torch.cuda.Event()
    assert event.device is None
    with torch.cuda.device(1):
        event.record()
    assert event.device == torch.device("cuda:1")
    shared = torch.cuda.Event(interprocess=True)  # has to live until the handle is opened
    handle = shared.ipc_handle()
    assert torch.cuda.Event.from_ipc_handle(torch.device("cuda:1"), handle).device == torch.device("cuda:1")


def probe_events_of_two_cards_have_no_time_between_them():
    events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    for card, event in zip((0, 1, 0), events, strict=True):
        with torch.cuda.device(card):
            event.record()
        event.synchronize()
    assert events[0].elapsed_time(events[2]) >= 0
    for pair in ((events[0], events[1]), (events[1], events[2])):
        with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid resource handle") as caught:
            pair[0].elapsed_time(pair[1])
        assert "cuda:0" in str(caught.value) and "cuda:1" in str(caught.value)
        assert caught.value.error_code == 400


def probe_every_number_is_an_error_code():
    cudart = torch.cuda.cudart()
    torch.cuda.check_error(0)
    texts = {1: "invalid argument", 2: "out of memory", 700: "an illegal memory access was encountered"}
    for code, text in {**texts, 12345: "unrecognized error code"}.items():
        with pytest.raises(torch.cuda.CudaError) as caught:
            torch.cuda.check_error(code)
        assert str(caught.value) == f"{text} ({code})"
        assert int(cudart.cudaError(code)) == code and cudart.cudaError(code) == cudart.cudaError(code)
    assert cudart.cudaError(0) is cudart.cudaError.success
    with pytest.raises(ValueError):
        cudart.cudaError("2")


def probe_an_ordinal_that_no_card_has():
    for call in (lambda: torch.cuda.set_device(99), lambda: torch.empty(2, device="cuda:99")):
        with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
            call()


def probe_no_pinned_memory_for_a_forked_child():
    torch.ones(2, device="cuda")
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            torch.ones(4).pin_memory()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, closefd=True) as said:
        assert "Cannot re-initialize CUDA in forked subprocess" in said.read()
    os.waitpid(child, 0)


def probe_registered_memory_is_pinned():
    cudart = torch.cuda.cudart()
    host = torch.zeros(1 << 20)
    assert cudart.cudaHostRegister(host.data_ptr(), host.nbytes, 0) == cudart.cudaError.success
    assert host.is_pinned() and host[1000:].is_pinned() and not torch.zeros(4).is_pinned()
    assert int(cudart.cudaHostRegister(host.data_ptr() + 4096, 4096, 0)) == 712
    assert int(cudart.cudaHostUnregister(host.data_ptr() + 4096)) == 713
    assert int(cudart.cudaHostRegister(host.data_ptr(), 0, 0)) == 1
    x = torch.ones(1 << 20, device="cuda")
    go, stream = threading.Event(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._launch_host_func(go.wait)
        host.copy_(x, non_blocking=True)
    assert not stream.query() and host[0] == 0  # the copy is behind the function that waits
    go.set()
    stream.synchronize()
    assert host.eq(1).all()
    assert cudart.cudaHostUnregister(host.data_ptr()) == cudart.cudaError.success
    assert not host.is_pinned()


def probe_emptying_the_cache_waits_for_all_streams_once():
    torch.empty(1 << 20, device="cuda")
    for _ in range(3):
        before = torch.cuda.memory_stats()["num_sync_all_streams"]
        torch.cuda.empty_cache()
        assert torch.cuda.memory_stats()["num_sync_all_streams"] == before + 1


def probe_gather_keeps_the_format_that_all_parts_have():
    x = torch.randn(4, 8, 6, 6, device="cuda:0").contiguous(memory_format=torch.channels_last)
    parts = torch.cuda.comm.scatter(x, (0, 1))
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in parts)
    for destination in (0, 1, torch.device("cpu")):
        gathered = torch.cuda.comm.gather(parts, destination=destination)
        assert gathered.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(gathered.cpu(), x.cpu())
    gathered = torch.cuda.comm.gather((parts[0], parts[1].contiguous()), destination=0)
    assert gathered.is_contiguous() and torch.equal(gathered, x)
    volume = torch.randn(2, 3, 4, 5, 6, device="cuda").contiguous(memory_format=torch.channels_last_3d)
    gathered = torch.cuda.comm.gather(torch.cuda.comm.scatter(volume, (0, 1)))
    assert gathered.is_contiguous(memory_format=torch.channels_last_3d) and torch.equal(gathered, volume)
