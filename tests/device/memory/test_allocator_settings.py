"""PYTORCH_ALLOC_CONF: what the cards follow, what they refuse, and nothing that they pass over."""

import pytest
from torch_build import without_cuda

# The settings are the process's, so each test has one of its own.
SET = """
import torch, warnings
MIB = 1 << 20
settings = torch.vdev.memory._set_allocator_settings
def empty(mebibytes): return torch.empty(int(mebibytes * MIB), dtype=torch.uint8, device="vdev")
def reserved(): return torch.vdev.memory_reserved() // MIB
"""


def test_settings_of_a_program(run_python):
    run_python(
        SET
        + """
settings("max_split_size_mb:30,max_non_split_rounding_mb:25")
address = empty(60).data_ptr()
assert torch.vdev.memory_stats()["oversize_allocations.peak"] == 1
assert torch.vdev.memory_stats()["oversize_segments.current"] == 1
told = torch.vdev.memory._snapshot()["allocator_settings"]["PYTORCH_ALLOC_CONF"]
assert told == "max_split_size_mb:30,max_non_split_rounding_mb:25"
assert torch.vdev.memory_stats()["max_split_size"] == 30 * MIB
kept = empty(25)
assert kept.data_ptr() != address and reserved() == 86
assert empty(32).data_ptr() != address  # it would leave 28 MiB unused
near = empty(40)
assert near.data_ptr() == address
del kept, near
torch.vdev.empty_cache()

settings("roundup_power2_divisions:[1:2,16:8,>:1]")
before = torch.vdev.memory_allocated()
x = empty(1.25)
assert torch.vdev.memory_allocated() - before == 1.5 * MIB
y = empty(33)
assert torch.vdev.memory_allocated() - before == 1.5 * MIB + 34 * MIB
assert torch.vdev.memory_stats()["requested_bytes.all.current"] >= 34.25 * MIB
del x, y
torch.vdev.empty_cache()

torch.vdev.set_per_process_memory_fraction(0.1)  # 204.8 MiB
settings("garbage_collection_threshold:0.5")
unused, first = empty(60), empty(40)
del unused
for _ in range(5): empty(1)
second = empty(70)  # 102 MiB are reserved, which is no more than half of the limit
assert reserved() == 60 + 40 + 2 + 70
third = empty(65)
assert reserved() == 40 + 2 + 70 + 66, reserved()

settings("large_segment_size_mb:40")
del first, second, third
torch.vdev.empty_cache()
x = empty(2)
assert reserved() == 40, reserved()
"""
    )


@pytest.mark.torch(">=2.13", "torch does not know these settings")
def test_limits_of_pinned_memory(run_python):
    run_python(
        SET
        + """
settings("pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:2")
def held(): return torch.vdev.host_memory_stats()["allocated_bytes.current"]
torch.accelerator.empty_host_cache()
before = held()
x = torch.empty(3 * MIB + 1, dtype=torch.uint8, pin_memory=True)
assert held() - before == 3 * MIB + 4096
del x
assert held() == before  # too large to be kept
torch.empty(MIB // 2 + 1, dtype=torch.uint8, pin_memory=True)
assert held() - before == MIB
"""
    )


@without_cuda  # whose own allocator takes these settings
@pytest.mark.parametrize("how", ["variable", "call"])
def test_what_cannot_be_followed_is_refused(run_python, how):
    refused = {
        "backend:cudaMallocAsync": "native",
        "pinned_use_cuda_host_register:True": "False",
        "pinned_num_register_threads:4": "1",
        "pinned_reserve_segment_size_mb:64": "0",
        "pinned_use_background_threads:True": "False",
        "graph_capture_record_stream_reuse:True": "False",
        "per_process_memory_fraction:0.5": "1.0",
        "bogus:1": "bogus",
    }
    if how == "call":
        run_python(
            SET
            + f"""
for text, instead in {refused}.items():
    try: settings(text)
    except ValueError as error: assert text.split(":")[0] in str(error) and instead in str(error), error
    else: raise AssertionError(text)
settings("backend:native,release_lock_on_cudamalloc:True,throw_on_cudamalloc_oom:True")
assert empty(1).numel() == MIB
"""
        )
        return
    run_python(
        SET
        + """
for _ in range(2):
    try: empty(1)
    except ValueError as error: assert "cudaMallocAsync" in str(error) and "native" in str(error)
    else: raise AssertionError
""",
        PYTORCH_ALLOC_CONF="max_split_size_mb:64,backend:cudaMallocAsync",
    )


def test_settings_of_the_environment(run_python):
    """The variable of old is read, too. expandable_segments warns once, as CUDA does where there are none."""
    result = run_python(
        SET
        + """
empty(64)
assert torch.vdev.memory_stats()["max_split_size"] == 64 * MIB
assert torch.vdev.memory_stats()["oversize_allocations.peak"] == 1
empty(1)
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64",
    )
    assert result.stderr.count("expandable_segments not supported on this platform") == 1
