"""Card memory and pinned memory: figures, reuse in stream order, running out."""

import os
import re
import threading

import pytest
import torch

import vccl
from vccl import _torch_version

MIB = 1 << 20


def empty(mebibytes, device="vdev"):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device=device)


def test_allocated_and_peak():
    torch.vdev.empty_cache()
    before = torch.vdev.memory_allocated()
    torch.vdev.reset_peak_memory_stats()
    x = empty(5)
    assert torch.vdev.memory_allocated() == before + 5 * MIB
    assert torch.vdev.memory_reserved() >= torch.vdev.memory_allocated()
    assert torch.accelerator.memory_allocated() == torch.vdev.memory_allocated()
    del x
    assert torch.vdev.memory_allocated() == before
    assert torch.vdev.max_memory_allocated() == before + 5 * MIB
    assert torch.vdev.max_memory_reserved() >= 5 * MIB
    torch.vdev.reset_peak_memory_stats()
    assert torch.vdev.max_memory_allocated() == before


def test_each_card_has_its_own():
    before = torch.vdev.memory_allocated(1), torch.vdev.memory_allocated(2)
    x = empty(3, "vdev:2")
    assert torch.vdev.memory_allocated("vdev:1") == before[0]
    assert torch.vdev.memory_allocated(torch.device("vdev:2")) == before[1] + 3 * MIB
    del x


def test_stats():
    empty(1)
    stats = torch.vdev.memory_stats()
    for name in (
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "allocation",
        "segment",
        "requested_bytes",
    ):
        for kind in ("current", "peak", "allocated", "freed"):
            assert stats[f"{name}.all.{kind}"] >= 0
    assert stats["allocation.all.allocated"] >= 1
    torch.vdev.reset_accumulated_memory_stats()
    assert torch.vdev.memory_stats()["allocation.all.allocated"] == 0
    assert "scratch_bytes" in torch.vdev.memory_summary()
    assert "MiB" in torch.vdev.memory_summary() and "vdev:0" in torch.vdev.memory_summary(abbreviated=True)


def test_stats_of_the_pools():
    def figures(name):
        stats = torch.vdev.memory_stats()
        return [stats[f"{name}.{pool}.current"] for pool in ("all", "small_pool", "large_pool")]

    empty(1)  # before the first use of a card there are no figures
    torch.vdev.synchronize()  # queued operators hold memory only while they run
    before = figures("requested_bytes")
    small, large = empty(1), torch.empty(MIB + 1, dtype=torch.uint8, device="vdev")
    after = figures("requested_bytes")
    # As on CUDA, 1 MiB is still small.
    assert [b - a for a, b in zip(before, after, strict=True)] == [2 * MIB + 1, MIB, MIB + 1]
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "allocation", "segment"):
        total, in_small, in_large = figures(name)
        assert total == in_small + in_large and in_small > 0 and in_large > 0, name
    del small, large
    assert figures("requested_bytes") == before


def test_ranks_of_a_machine_share_its_memory(run_python):
    # The variable of the tests' own environment is taken away before anybody reads it.
    program = (
        "import os; del os.environ['VDEV_MEMORY']\n"
        "import torch\n"
        "print(*torch.vdev.mem_get_info(), torch.vdev.get_device_properties(0).total_memory)\n"
    )
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for ranks in (1, 4):
        free, total, capacity = map(int, run_python(program, LOCAL_WORLD_SIZE=str(ranks)).stdout.split())
        assert 0 < free <= total == capacity
        assert total * ranks < ram


def test_a_card_has_no_more_than_the_machine(run_python):
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, total = map(
        int,
        run_python(
            "import torch; print(*torch.vdev.mem_get_info())", VDEV_MEMORY=str(4 * ram)
        ).stdout.split(),
    )
    assert total == 4 * ram and 0 < free < ram


def test_times_of_pinned_memory():
    torch.accelerator.empty_host_cache()
    torch.vdev.reset_accumulated_host_memory_stats()
    torch.vdev.reset_peak_host_memory_stats()
    for size in (5, 9):
        torch.empty(size * MIB, dtype=torch.uint8, pin_memory=True)
    torch.accelerator.empty_host_cache()
    stats = torch.vdev.host_memory_stats()
    for name in ("host_alloc_time", "host_free_time"):
        count, least, most, total, mean = (
            stats[f"{name}.{kind}"] for kind in ("count", "min", "max", "total", "avg")
        )
        assert count == 2 == stats["num_host_alloc"] and total // 2 == mean
        assert 0 <= least <= mean <= most <= total
    assert stats["host_alloc_time.max"] > 0  # taking pages is not done in a microsecond
    torch.vdev.reset_accumulated_host_memory_stats()
    torch.vdev.reset_peak_host_memory_stats()
    stats = torch.vdev.host_memory_stats()
    assert not any(value for name, value in stats.items() if "_time." in name)


def test_pinned_memory_beyond_the_machine(run_python):
    """The error comes before the pages are used, and names the limit."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    # Older versions do not know the setting, and round the first size up to one that is too large as well.
    unrounded = {"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:1024"}
    variables = unrounded if _torch_version.is_one_of(">=2.13") else {}
    # The system refuses the second size, and would give the first until its memory has run out.
    for size in ((available + ram) // 2, 4 * ram):
        program = (
            "import torch\n"
            f"try: torch.empty({size}, dtype=torch.uint8, pin_memory=True)\n"
            "except torch.OutOfMemoryError as error: print(error)\n"
            "assert torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True).is_pinned()"
        )
        printed = run_python(program, **variables).stdout
        assert re.match(r"Cannot allocate \d+ bytes of pinned host memory\. The machine has \d+ MiB", printed)


def test_empty_cache_gives_memory_back():
    x = empty(64)
    reserved = torch.vdev.memory_reserved()
    free, total = torch.vdev.mem_get_info()
    assert total == 2 << 30 and free == total - reserved
    del x
    assert torch.vdev.memory_reserved() == reserved
    torch.vdev.empty_cache()
    assert torch.vdev.memory_reserved() <= reserved - 64 * MIB
    assert torch.accelerator.get_memory_info()[0] >= free + 64 * MIB


def test_zero_bytes():
    before = torch.vdev.memory_allocated()
    x = torch.empty(0, device="vdev:1")
    assert x.data_ptr() == 0 and x.untyped_storage().nbytes() == 0 and x.get_device() == 1
    assert torch.vdev.memory_allocated() == before


def test_out_of_memory_and_after():
    with pytest.raises(torch.OutOfMemoryError) as error:
        empty(4096, "vdev:6")
    text = str(error.value)
    assert "out of memory" in text and "4.00 GiB" in text and "2.00 GiB" in text
    assert isinstance(error.value, RuntimeError)
    # What is kept for reuse is given up before the error.
    kept = empty(1500, "vdev:6")
    with pytest.raises(torch.OutOfMemoryError):
        empty(1000, "vdev:6")
    del kept
    assert empty(1000, "vdev:6").numel() == 1000 * MIB
    assert torch.vdev.memory_stats(6)["num_ooms"] == 2
    torch.vdev.empty_cache()


def test_memory_fraction():
    torch.vdev.set_per_process_memory_fraction(0.25, 7)
    with pytest.raises(torch.OutOfMemoryError):
        empty(600, "vdev:7")
    torch.vdev.set_per_process_memory_fraction(1.0, 7)
    empty(600, "vdev:7")
    torch.vdev.empty_cache()
    with pytest.raises(ValueError):
        torch.vdev.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError):
        torch.vdev.set_per_process_memory_fraction(1)


def test_a_freed_block_goes_to_its_own_stream_at_once(fresh_memory):
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        x = empty(3)
        pointer = x.data_ptr()
        del x
        assert empty(3).data_ptr() == pointer
    with torch.vdev.stream(torch.vdev.Stream()):
        assert empty(3).data_ptr() != pointer


def test_record_stream_keeps_a_block(gate, fresh_memory):
    side = torch.vdev.Stream()
    x = empty(3)
    pointer = x.data_ptr()
    gate.close(side)
    x.record_stream(side)
    del x
    held = empty(3)
    assert held.data_ptr() != pointer
    gate.open()
    side.synchronize()
    again = [empty(3) for _ in range(2)]
    assert pointer in [tensor.data_ptr() for tensor in again]


def test_storage_resize():
    x = torch.arange(1000.0).to("vdev")
    storage = x.untyped_storage()
    before = torch.vdev.memory_allocated()
    storage.resize_(8000)
    assert storage.nbytes() == 8000
    assert x.cpu().tolist() == list(range(1000))
    storage.resize_(400)
    assert torch.equal(torch.empty(0, device="vdev").set_(storage, 0, (100,)).cpu(), torch.arange(100.0))
    storage.resize_(0)
    assert storage.nbytes() == 0 and storage.data_ptr() == 0
    assert torch.vdev.memory_allocated() < before
    storage.resize_(4000)
    assert x.data_ptr() != 0
    x.fill_(2)
    assert x.sum().item() == 2000


def test_storage_resize_follows_the_stream(gate):
    """The copy into the new memory comes after what is queued; the old memory lives until then."""
    side = torch.vdev.Stream()
    host = torch.full((1 << 18,), 7.0).pin_memory()
    with torch.vdev.stream(side):
        x = torch.zeros(1 << 18, device="vdev")
        gate.close(side)
        x.copy_(host, non_blocking=True)
        x.untyped_storage().resize_(1 << 21)
        gate.open()
        assert x.eq(7).all().item()


def test_pinned_memory():
    x = torch.arange(10.0)
    assert not x.is_pinned()
    y = x.pin_memory()
    assert y.is_pinned() and y[3:].is_pinned() and y.device.type == "cpu" and torch.equal(x, y)
    assert y.pin_memory() is y
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0
    assert not torch.empty(3, device="vdev").is_pinned()


def test_pinned_memory_waits_for_the_stream(gate):
    """A pinned block that a queued copy still reads is not handed out again."""
    n = 1 << 18
    target = torch.zeros(n, device="vdev")
    torch.vdev.synchronize()  # the zeros come first, and before the gate
    stream = torch.vdev.Stream()
    gate.close(stream)
    source = torch.ones(n).pin_memory()
    pointer = source.data_ptr()
    with torch.vdev.stream(stream):
        target.copy_(source, non_blocking=True)
    del source
    others = [torch.empty(n, pin_memory=True) for _ in range(3)]
    assert pointer not in [other.data_ptr() for other in others]
    for other in others:
        other.fill_(5)
    gate.open()
    stream.synchronize()
    assert target.eq(1).all().item()
    del others, other
    # Freed, reached: it comes back, or the system has it.
    assert torch.empty(n, pin_memory=True).is_pinned()
    torch.accelerator.empty_host_cache()


def test_pinned_memory_in_use_by_a_stream_is_kept(gate):
    torch.accelerator.empty_host_cache()  # else what others have left might be used in its place
    stream = torch.vdev.Stream()
    gate.close(stream)
    x = torch.empty(1 << 18, pin_memory=True)
    pointer = x.data_ptr()
    with torch.vdev.stream(stream):
        assert vccl._C.record_pinned_use(pointer + 100)  # anywhere inside
        assert not vccl._C.record_pinned_use(torch.empty(5).data_ptr())
    del x
    others = [torch.empty(1 << 18, pin_memory=True) for _ in range(3)]
    assert pointer not in [other.data_ptr() for other in others]
    gate.open()
    stream.synchronize()
    assert torch.empty(1 << 18, pin_memory=True).data_ptr() == pointer


def test_pinned_blocks_are_reused():
    torch.accelerator.empty_host_cache()
    x = torch.empty(1 << 16, pin_memory=True)
    pointer = x.data_ptr()
    del x
    assert torch.empty(1 << 16, pin_memory=True).data_ptr() == pointer


def test_memory_in_the_profiler():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        x = torch.empty(1 << 20, device="vdev")
        del x
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [
        event.nbytes() for event in events if event.device_type() == torch._C._autograd.DeviceType.PrivateUse1
    ]
    assert 4 * MIB in sizes and -4 * MIB in sizes


def test_memory_comes_back_after_errors():
    before = torch.vdev.memory_allocated()
    for _ in range(20):
        with pytest.raises(RuntimeError):
            torch.empty(1 << 20, device="vdev").view(3, 5)
    assert torch.vdev.memory_allocated() == before


def test_waiting_for_memory_lets_other_threads_run(gate):
    """Memory that a stream still uses is waited for rather than called missing, and without the GIL."""
    side = torch.vdev.Stream("vdev:5")
    x = empty(1500, "vdev:5")
    gate.close(side)
    x.record_stream(side)
    del x
    opener = threading.Timer(0.05, gate.open)
    opener.start()
    with torch.vdev.device(5):
        storage = torch.UntypedStorage(1500 * MIB, device="vdev:5")
    assert gate.opened.is_set() and storage.nbytes() == 1500 * MIB
    opener.join()
    del storage
    torch.vdev.empty_cache()


def test_record_stream_on_results_that_the_kernel_allocated(gate, fresh_memory):
    """What a CPU kernel allocates becomes a block of the card like any other."""
    ones = torch.ones(1 << 18, device="vdev")
    side = torch.vdev.Stream()
    x = ones.nonzero()
    assert x.numel() == 1 << 18
    pointer, size = x.data_ptr(), x.untyped_storage().nbytes()
    gate.close(side)
    x.record_stream(side)
    before = torch.vdev.memory_stats()["active_bytes.all.current"]
    allocated = torch.vdev.memory_allocated()
    del x
    assert torch.vdev.memory_allocated() == allocated - size
    assert torch.vdev.memory_stats()["active_bytes.all.current"] == before
    gate.open()
    side.synchronize()
    assert pointer in [torch.empty(size, dtype=torch.uint8, device="vdev").data_ptr()]
