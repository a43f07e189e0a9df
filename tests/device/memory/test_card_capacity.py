"""A card's capacity belongs to the card: processes that use it have no more than that together."""

SHARED = """
import os, signal
import torch

def reserve(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="vdev:1")

to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    kept = reserve(80)
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    os._exit(1)
os.read(to_parent[0], 1)
assert torch.vdev.mem_get_info(1) == (48 << 20, 128 << 20)
x = reserve(20)
del x  # stays reserved, and is returned before the next call gives up
assert torch.vdev.mem_get_info(1) == (28 << 20, 128 << 20)
x = reserve(48)
assert torch.vdev.mem_get_info(1) == (0, 128 << 20)
try:
    reserve(4)
except torch.OutOfMemoryError as error:
    text = str(error)
else:
    raise AssertionError("more than the card has")
assert f"Process {child} (python" in text and "has 80.00 MiB memory in use" in text, text
assert "of which 0 bytes is free" in text and "torch.vdev.list_gpu_processes()" in text, text
assert torch.vdev.device_memory_used(1) == 128 << 20
lines = torch.vdev.list_gpu_processes("vdev:1").splitlines()
assert lines[0] == "GPU:1"
assert sorted(lines[1:]) == sorted(
    f"process {pid:>10d} uses {mib:>12.3f} MB GPU memory" for pid, mib in ((child, 80), (os.getpid(), 48))
)
assert torch.vdev.list_gpu_processes(2) == "GPU:2\\nno processes are running"
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert torch.vdev.mem_get_info(1) == (80 << 20, 128 << 20)
reserve(80)
"""


def test_processes_share_a_card(run_python):
    run_python(SHARED, VDEV_MEMORY="128M")


def test_a_physical_card_is_shared_under_any_number(run_python):
    code = """
import os
import torch

to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.environ["VDEV_VISIBLE_DEVICES"] = "3,1"
    kept = torch.empty(80 << 20, dtype=torch.uint8, device="vdev:0")
    os.write(to_parent[1], torch.vdev.list_gpu_processes(0)[:5].encode())
    os.read(to_child[0], 1)
    os._exit(0)
assert os.read(to_parent[0], 5) == b"GPU:3"
free = [torch.vdev.mem_get_info(card)[0] >> 20 for card in range(4)]
os.write(to_child[1], b"x")
assert free == [128, 128, 128, 48], free
assert os.waitpid(child, 0)[1] == 0
"""
    run_python(code, VDEV_MEMORY="128M", VDEV_DEVICE_COUNT="4")
