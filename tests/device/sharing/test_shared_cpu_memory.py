"""CPU tensors in shared memory: which are, what they can do, and what a forked process has of them."""

SHARING = """
import gc, os, threading
import torch, vccl
from vccl import _C
vccl.share_cpu_memory()
torch.set_num_threads(1)  # OpenMP's threads, once started, are what a forked child waits for in vain
MiB = 1 << 20
def is_shared(tensor):
    return _C._is_shared_cpu_memory(tensor.untyped_storage().data_ptr())
def stats():
    gc.collect()
    return _C._cpu_memory_stats()
def in_child(what):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            what()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"
"""


def test_the_variable(run_python):
    ask = "import torch; from vccl import _C; print(_C._is_shared_cpu_memory(torch.ones(1 << 20).data_ptr()))"
    for value, expected in (("1", "True"), ("0", "False"), ("", "False")):
        assert run_python(ask, VCCL_SHARE_CPU=value).stdout.strip() == expected
    result = run_python(ask, check=False, VCCL_SHARE_CPU="yes")
    assert result.returncode != 0  # at the import of vccl, not at that of torch (test_torch_backend.py)
    assert 'VCCL_SHARE_CPU is "yes"; allowed are 0 and 1' in result.stderr


def test_off_unless_asked_for(run_python):
    run_python(
        "import os, torch, vccl\n"
        "from vccl import _C\n"
        "assert 'vccl-host' not in open('/proc/self/maps').read()\n"
        "x = torch.ones(1 << 20)\n"
        "assert not _C._is_shared_cpu_memory(x.data_ptr()) and not _C._is_sharing_cpu_memory()\n"
        "vccl.share_cpu_memory()\n"
        "assert not _C._is_shared_cpu_memory(x.data_ptr())\n"  # made before
        "assert _C._is_shared_cpu_memory(torch.ones(1 << 20).data_ptr())\n"
    )


def test_from_which_size_on(run_python):
    run_python(
        SHARING + "assert is_shared(torch.empty(64 * 1024, dtype=torch.uint8))\n"
        "assert not is_shared(torch.empty(64 * 1024 - 1, dtype=torch.uint8))\n"
        "assert not is_shared(torch.empty(0))\n"
        "vccl.share_cpu_memory(min_bytes=2 * MiB)\n"
        "vccl.share_cpu_memory(2 * MiB)\n"
        "assert is_shared(torch.empty(2 * MiB, dtype=torch.uint8))\n"
        "assert not is_shared(torch.empty(2 * MiB - 1, dtype=torch.uint8))\n"
        "for bad in (0, -1):\n"
        "    try:\n"
        "        vccl.share_cpu_memory(bad)\n"
        "    except ValueError as error:\n"
        "        assert 'at least 1' in str(error)\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )


def test_tensors_are_what_they_are_elsewhere(run_python):
    run_python(
        SHARING + "import io, numpy\n"
        "x = torch.arange(MiB, dtype=torch.float32)\n"
        "assert is_shared(x) and x.device.type == 'cpu' and x.data_ptr() % 64 == 0 and not x.is_shared()\n"
        "assert torch.zeros(MiB).eq(0).all()\n"
        "y = torch.full((MiB,), 5.0); del y\n"
        "assert torch.zeros(MiB).eq(0).all()\n"  # where y was
        "array = x.numpy()\n"
        "array[7] = -1\n"
        "assert x[7] == -1 and torch.from_numpy(array).data_ptr() == x.data_ptr()\n"
        "x[7] = 7\n"
        "big = x.clone().resize_(3 * MiB)\n"
        "assert is_shared(big) and big[:MiB].equal(x)\n"
        "big.resize_(10); assert big.equal(x[:10])\n"
        "small = torch.ones(10).resize_(MiB)\n"
        "assert is_shared(small) and small[:10].eq(1).all()\n"
        "blob = torch.frombuffer(bytearray(MiB), dtype=torch.uint8)\n"
        "assert not is_shared(blob)\n"
        "moved = x.clone().share_memory_()\n"
        "assert moved.is_shared() and not is_shared(moved) and moved.equal(x)\n"
        "file = io.BytesIO(); torch.save(x, file); file.seek(0)\n"
        "assert torch.load(file).equal(x)\n"
        "pinned = x.pin_memory()\n"
        "assert pinned.is_pinned() and not is_shared(pinned) and pinned.equal(x)\n"
        "assert x.to('vdev').cpu().equal(x)\n"
        "lazy = torch._lazy_clone(x); lazy[0] = 9\n"
        "assert x[0] == 0 and lazy[0] == 9 and lazy[1:].equal(x[1:])\n"
        "assert torch.from_dlpack(x).data_ptr() == x.data_ptr()\n"
        "a = torch.randn(300, 300); b = torch.randn(300, 300)\n"
        "expected = a.double() @ b.double()\n"
        "torch.testing.assert_close((a @ b).double(), expected, rtol=1e-3, atol=1e-3)\n"
        "net = torch.nn.Conv2d(8, 64, 3)\n"  # oneDNN's scratch memory is the allocator's
        "net(torch.randn(4, 8, 64, 64)).sum().backward()\n"
        "assert net.weight.grad.isfinite().all()\n"
        "del x, array, big, small, moved, pinned, lazy, a, b, expected, net, file\n"
        "assert stats()['live_blocks'] == 0, stats()\n"
    )


def test_memory_goes_back_to_the_system(run_python):
    run_python(
        SHARING + "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGESIZE')\n"
        "before = resident()\n"
        "blocks = [torch.ones(16 * MiB, dtype=torch.uint8) for _ in range(64)]\n"
        "assert resident() - before >= 1000 * MiB\n"
        "assert stats()['live_bytes'] == 1024 * MiB\n"
        "del blocks\n"
        "assert stats()['live_bytes'] == 0 and stats()['cached_bytes'] <= 256 * MiB\n"
        "assert resident() - before <= 300 * MiB\n"
        "_C._empty_cpu_cache()\n"
        "assert stats()['cached_bytes'] == 0 and resident() - before <= 50 * MiB\n"
    )


def test_what_has_no_room_is_ordinary_memory(run_python):
    run_python(
        SHARING + "capacity = stats()['capacity']\n"
        "half = torch.empty(capacity // 2 + MiB, dtype=torch.uint8)\n"  # untouched: costs nothing
        "assert is_shared(half)\n"
        "other = torch.empty(capacity // 2, dtype=torch.uint8)\n"
        "assert not is_shared(other)\n"
        "other[-1] = 1\n"
        "assert is_shared(torch.ones(MiB))\n"
        "try:\n"
        "    torch.empty(1 << 60, dtype=torch.uint8)\n"
        "except RuntimeError as error:\n"
        "    assert 'allocate' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )


def test_little_address_space(run_python):
    run_python(
        "import resource, torch, vccl\n"
        "from vccl import _C\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), used + (3 << 30)))\n"
        "vccl.share_cpu_memory()\n"
        "assert 256 << 20 <= _C._cpu_memory_stats()['capacity'] <= 3 << 30\n"
        "assert _C._is_shared_cpu_memory(torch.ones(1 << 20).data_ptr())\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used, used + (3 << 30)))\n"
    )
    result = run_python(
        "import resource, torch, vccl\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), used + (100 << 20)))\n"
        "try:\n"
        "    vccl.share_cpu_memory()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "assert torch.ones(1 << 20).sum() == 1 << 20\n"
    )
    assert "CPU memory cannot be shared" in result.stdout


def test_threads(run_python):
    run_python(
        SHARING + "import queue\n"
        "full, done = queue.Queue(8), []\n"
        "def make():\n"
        "    for i in range(200):\n"
        "        full.put((i, torch.full((50_000 + 1000 * (i % 7),), float(i))))\n"
        "def use():\n"
        "    while (item := full.get()) is not None:\n"
        "        i, tensor = item\n"
        "        done.append(bool(tensor.eq(i).all()))\n"
        "        del tensor, item\n"
        "makers = [threading.Thread(target=make) for _ in range(3)]\n"
        "users = [threading.Thread(target=use) for _ in range(3)]\n"
        "for thread in makers + users: thread.start()\n"
        "for thread in makers: thread.join()\n"
        "for _ in users: full.put(None)\n"
        "for thread in users: thread.join()\n"
        "assert len(done) == 600 and all(done)\n"
        "assert stats()['live_blocks'] == 0\n"
        "x = torch.randn(256, 256, requires_grad=True)\n"
        "def backward():\n"
        "    for _ in range(10): (x @ x).relu().sum().backward()\n"
        "threads = [threading.Thread(target=backward) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "single = torch.autograd.grad((x @ x).relu().sum(), x)[0]\n"
        "torch.testing.assert_close(x.grad, 30 * single, rtol=1e-3, atol=1e-2)\n"
    )


def test_the_end_of_a_process_with_tensors(run_python):
    result = run_python(
        SHARING + "kept = torch.ones(MiB)\n"
        "class Cycle: pass\n"
        "cycle = Cycle(); cycle.me = cycle; cycle.tensor = torch.ones(MiB)\n"
        "torch.kept = torch.ones(MiB)\n"
        "local = threading.local(); local.tensor = torch.ones(MiB)\n"
        "import atexit; atexit.register(lambda: torch.ones(MiB))\n"
    )
    assert result.stderr == ""


def test_a_child_has_its_own(run_python):
    run_python(
        SHARING + "x, y = torch.ones(MiB), torch.ones(MiB)\n"
        "heard = os.pipe()\n"
        "def child():\n"
        "    global y\n"
        "    os.read(heard[0], 1)\n"  # the parent has written and freed
        "    assert x.eq(1).all() and y.eq(1).all()\n"
        "    x.mul_(5); y.add_(1)\n"
        "    assert x.eq(5).all() and y.eq(2).all()\n"
        "    own = torch.ones(MiB)\n"
        "    assert not is_shared(own) and is_shared(x)\n"
        "    del y\n"
        "    assert not _C._is_sharing_cpu_memory()\n"
        "    vccl.share_cpu_memory()\n"
        "    assert is_shared(torch.ones(MiB)) and x.eq(5).all()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        child()\n"
        "    except BaseException:\n"
        "        import traceback; traceback.print_exc(); os._exit(1)\n"
        "    os._exit(0)\n"
        "x.fill_(3); del y\n"
        "_C._empty_cpu_cache()\n"
        "z = torch.full((MiB,), 7.0)\n"
        "os.write(heard[1], b'x')\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert x.eq(3).all() and z.eq(7).all()\n"
        "assert is_shared(torch.ones(MiB))\n"
    )


def test_a_child_that_ends_in_the_ordinary_way(run_python):
    result = run_python(
        SHARING + "x = torch.ones(MiB)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    y = x + 1\n"
        "    raise SystemExit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n"
        "assert x.eq(1).all()\n"
    )
    assert result.stderr == ""


def test_arguments_of_a_forked_process(run_python):
    """Process drops them in the parent as soon as the child runs."""
    run_python(
        SHARING + "import multiprocessing, time\n"
        "def work(tensor, go, answer):\n"
        "    go.wait(60)\n"
        "    answer.put(float(tensor.sum()))\n"
        "context = multiprocessing.get_context('fork')\n"
        "go, answer = context.Event(), context.Queue()\n"
        "process = context.Process(target=work, args=(torch.ones(MiB), go, answer))\n"
        "process.start()\n"
        "assert stats()['live_blocks'] == 0\n"
        "_C._empty_cpu_cache()\n"
        "other = torch.full((MiB,), 9.0)\n"
        "go.set()\n"
        "assert answer.get(timeout=300) == MiB\n"
        "process.join(60)\n"
        "assert process.exitcode == 0\n"
    )


def test_data_loader_workers(run_python):
    run_python(
        SHARING + "from torch.utils.data import DataLoader, Dataset\n"
        "class Rows(Dataset):\n"
        "    def __init__(self): self.rows = torch.arange(64.0)[:, None].repeat(1, 40_000)\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, i):\n"
        "        self.rows[i] += 0.5\n"  # a worker's own
        "        return self.rows[i]\n"
        "rows = Rows()\n"
        "assert is_shared(rows.rows)\n"
        "loader = DataLoader(rows, batch_size=8, num_workers=2, timeout=300,\n"
        "                    multiprocessing_context='fork')\n"
        "for _ in range(2):\n"
        "    total = sum(float(batch[:, 0].sum()) for batch in loader)\n"
        "    assert total == sum(range(64)) + 32, total\n"
        "assert rows.rows[:, 1].equal(torch.arange(64.0))\n"
    )


def test_nothing_stays_open(run_python):
    run_python(
        SHARING + "import subprocess\n"
        "def descriptors(): return len(os.listdir('/proc/self/fd'))\n"
        "x = torch.ones(MiB)\n"
        "subprocess.run(['true'], check=True)\n"
        "before = descriptors()\n"
        "for _ in range(5):\n"
        "    in_child(lambda: x.add_(1))\n"
        "    subprocess.run(['true'], check=True)\n"
        "    subprocess.run(['true'], check=True, preexec_fn=lambda: None)\n"
        "assert descriptors() == before and x.eq(1).all()\n"
        "assert not [name for name in os.listdir('/dev/shm') if 'vccl' in name]\n"
        "assert _C._cpu_memory_stats()['live_blocks'] == 1\n"
    )


def test_the_profiler_counts_it(run_python):
    run_python(
        SHARING + "from torch.profiler import profile, ProfilerActivity\n"
        "with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:\n"
        "    x = torch.ones(MiB)\n"
        "    del x\n"
        "total = {event.key: event.cpu_memory_usage for event in record.key_averages()}\n"
        "assert total['aten::ones'] == 4 * MiB or total['aten::empty'] == 4 * MiB, total\n"
    )
