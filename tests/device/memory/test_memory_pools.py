"""Memory pools of the program's own, memory without a tensor, and what is refused."""

import gc
import threading

import pytest
import torch

MIB = 1 << 20


def mebibytes(count, device="vdev"):
    return torch.empty(count * MIB, dtype=torch.uint8, device=device)


def reserved(pool):
    return torch.vdev.memory_stats().get(f"reserved_bytes_by_private_pools.0_{pool.id[1]}.all.current", 0)


def segments(pool):
    return [segment["total_size"] for segment in pool.snapshot()]


def test_a_pool_has_its_memory_for_itself():
    pool, other = torch.vdev.MemPool(), torch.vdev.MemPool()
    assert pool.id != other.id and pool.id[0] == 0 and pool.use_count() == 1
    with torch.vdev.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = mebibytes(30)
        with torch.vdev.use_mem_pool(other):
            y = mebibytes(3)
    assert pool.use_count() == 1 and other.use_count() == 1
    outside = mebibytes(30)
    assert segments(pool) == [30 * MIB] and segments(other) == [20 * MIB]
    assert torch.vdev.memory_snapshot(mempool_id=pool.id)[0]["segment_pool_id"] == pool.id
    assert reserved(pool) == 30 * MIB and torch.vdev.memory_stats()["reserved_bytes.all.current"] >= 80 * MIB
    address = x.data_ptr()
    del x, outside
    torch.vdev.empty_cache()  # the pool keeps what it has
    assert segments(pool) == [30 * MIB]
    with torch.vdev.use_mem_pool(pool):
        assert mebibytes(30).data_ptr() == address
    del y


def test_the_memory_of_a_pool_goes_with_it():
    gc.collect()  # what other tests have left in cycles would go with the pool
    torch.vdev.empty_cache()
    before = torch.vdev.memory_reserved()
    pool = torch.vdev.MemPool()
    with torch.vdev.use_mem_pool(pool):
        kept, gone = torch.full((40 * MIB,), 7, dtype=torch.uint8, device="vdev"), mebibytes(50)
    del gone
    number = pool.id[1]
    del pool
    gc.collect()
    assert torch.vdev.memory_reserved() == before + 40 * MIB
    assert kept[-1].item() == 7  # its owner is the tensor
    del kept
    torch.vdev.empty_cache()
    assert torch.vdev.memory_reserved() == before
    assert torch.vdev.memory_stats()[f"reserved_bytes_by_private_pools.0_{number}.all.peak"] == 90 * MIB


def test_a_pool_is_for_one_thread_and_one_card():
    pool = torch.vdev.MemPool()
    found = []
    with torch.vdev.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: found.append(mebibytes(3)))
        thread.start()
        thread.join()
        found.append(mebibytes(3, "vdev:1"))
        assert segments(pool) == []
        with torch.vdev.use_mem_pool(pool, 1):
            found.append(mebibytes(3, "vdev:1"))
        assert [segment["device"] for segment in pool.snapshot()] == [1]
    with pytest.raises(ZeroDivisionError), torch.vdev.use_mem_pool(pool):
        raise ZeroDivisionError
    assert pool.use_count() == 1


def test_operators_use_the_pool(gate):
    """Results come from the pool also if the operators run later, on the stream of the program's choice."""
    pool = torch.vdev.MemPool()
    x = torch.arange(1 << 19, device="vdev", dtype=torch.float32)
    stream = torch.vdev.Stream()
    stream.wait_stream(torch.vdev.current_stream())
    with torch.vdev.stream(stream), torch.vdev.use_mem_pool(pool):
        y = x * 2 + 1
        addresses = [y.data_ptr()]
    ranges = [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]
    assert all(any(low <= address < high for low, high in ranges) for address in addresses)
    stream.synchronize()
    assert torch.equal(y.cpu(), torch.arange(1 << 19, dtype=torch.float32) * 2 + 1)


def test_graphs_are_captured_into_a_pool():
    pool = torch.vdev.MemPool()
    x = torch.ones(1 << 18, device="vdev")
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph, pool=pool.id):
        y = x * 3
    assert graph.pool() == pool.id and pool.use_count() == 2
    assert any(s["address"] <= y.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())
    graph.replay()
    torch.vdev.synchronize()
    assert y[-1].item() == 3
    graph.reset()
    assert pool.use_count() == 1


def test_a_pool_that_may_be_used_when_memory_runs_out():
    torch.vdev.empty_cache()
    torch.vdev.set_per_process_memory_fraction(0.1, 3)
    with torch.vdev.device(3):
        for helps in (False, True):
            pool = torch.vdev.MemPool(use_on_oom=helps)
            with torch.vdev.use_mem_pool(pool):
                address = mebibytes(150).data_ptr()
            if helps:
                assert mebibytes(150).data_ptr() == address
            else:
                with pytest.raises(torch.OutOfMemoryError):
                    mebibytes(150)
            del pool
    torch.vdev.set_per_process_memory_fraction(1.0, 3)


def test_a_pool_that_does_not_split():
    pool = torch.vdev.MemPool(no_split=True)
    before = torch.vdev.memory_allocated()
    with torch.vdev.use_mem_pool(pool):
        small, large = torch.empty(10, device="vdev"), mebibytes(3)
    assert torch.vdev.memory_allocated() - before == 22 * MIB
    del small, large


def test_memory_without_a_tensor():
    stream = torch.vdev.Stream()
    before = torch.vdev.memory_allocated()
    addresses = [
        torch.vdev.caching_allocator_alloc(3 * MIB),
        torch.vdev.caching_allocator_alloc(3 * MIB, 0, stream),
        torch.vdev.caching_allocator_alloc(3 * MIB, None, stream.native_handle),
    ]
    assert torch.vdev.memory_allocated() == before + 9 * MIB
    streams = {
        segment["stream"]
        for segment in torch.vdev.memory_snapshot()
        for address in addresses
        if segment["address"] <= address < segment["address"] + segment["total_size"]
    }
    assert streams == {0, stream.stream_id}
    for address in addresses:
        torch.vdev.caching_allocator_delete(address)
    assert torch.vdev.memory_allocated() == before
    assert torch.vdev.caching_allocator_alloc(0) == 0
    torch.vdev.caching_allocator_delete(0)
    x = torch.ones(4, device="vdev")  # which frees its memory itself
    for wrong in (addresses[0], 8, x.data_ptr()):
        with pytest.raises(RuntimeError, match=f"{wrong} is no address that caching_allocator_alloc has"):
            torch.vdev.caching_allocator_delete(wrong)
    assert x.sum() == 4
    with pytest.raises(TypeError):
        torch.vdev.caching_allocator_alloc(8, stream="main")
    with pytest.raises(RuntimeError):
        torch.vdev.caching_allocator_alloc(8, stream=12345)


def test_sizes_and_addresses_are_checked():
    for call, text in (
        (lambda: torch.vdev.caching_allocator_alloc(-1), "size must be from 0"),
        (lambda: torch.vdev.caching_allocator_alloc(8, stream=-1), "stream must be from 0"),
        (lambda: torch.vdev.caching_allocator_delete(-1), "mem_ptr must be from 0"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    for call in (torch.vdev.caching_allocator_alloc, torch.vdev.caching_allocator_delete):
        with pytest.raises(TypeError, match="must be an int, got float"):
            call(1.5)


def test_what_is_refused():
    for call in (
        lambda: torch.vdev.MemPool(object()),
        lambda: torch.vdev.change_current_allocator(None),
        lambda: torch.vdev.memory.VDEVPluggableAllocator("a.so", "alloc", "free"),
        lambda: torch.vdev.caching_allocator_enable(False),
        torch.vdev.caching_allocator_disabled().__enter__,
    ):
        with pytest.raises(NotImplementedError, match=r"[Tt]he cards"):
            call()
    torch.vdev.caching_allocator_enable(True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")],
)
def test_old_names_of_figures(old, new):
    with pytest.warns(FutureWarning):
        assert getattr(torch.vdev, old)() == getattr(torch.vdev, new)()


def test_old_names_of_resets():
    for name in ("reset_max_memory_allocated", "reset_max_memory_cached"):
        mebibytes(40)
        with pytest.warns(FutureWarning):
            getattr(torch.vdev.memory, name)()
        assert torch.vdev.max_memory_allocated() == torch.vdev.memory_allocated()


def test_one_list_of_names():
    assert set(torch.vdev.memory.__all__) < set(torch.vdev.__all__)
    assert all(
        getattr(torch.vdev, name) is getattr(torch.vdev.memory, name) for name in torch.vdev.memory.__all__
    )
    assert len(set(torch.vdev.__all__)) == len(torch.vdev.__all__)


def test_every_name_of_cudas_memory_module_is_here():
    names = {name.replace("CUDA", "VDEV") for name in torch.cuda.memory.__all__}
    assert names <= set(torch.vdev.memory.__all__)
