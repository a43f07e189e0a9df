"""Forked processes: an error at first use of a card, and not before."""

CHILD = """
import os, sys, traceback
def in_child(what):
    pid = os.fork()
    if pid == 0:
        try:
            what()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
def refused(use):
    try:
        use()
    except RuntimeError as error:
        assert "fork" in str(error) and "spawn" in str(error), error
    else:
        raise SystemExit("no error")
import torch, vccl
"""


def test_a_child_of_a_process_that_used_a_card(run_python):
    run_python(
        CHILD + "x = torch.ones(3, device='vdev')\n"
        "torch.vdev._launch_host_func(lambda: None)\n"
        "def child():\n"
        "    assert torch.vdev._is_in_bad_fork()\n"
        "    assert torch.vdev.is_available() and torch.vdev.device_count() == 8\n"
        "    torch.manual_seed(1)\n"
        "    torch.vdev.manual_seed_all(1)\n"
        "    assert torch.ones(3).sum() == 3\n"
        "    pinned = lambda: torch.ones(3).pin_memory().is_pinned()\n"
        "    in_pose = torch.accelerator.current_accelerator().type == 'cuda'\n"
        "    assert refused(pinned) is None if in_pose else pinned()\n"
        "    refused(lambda: torch.ones(3, device='vdev'))\n"
        "    refused(lambda: torch.empty(3, device='vdev:1'))\n"
        "    refused(lambda: x + 1)\n"
        "    refused(lambda: x.cpu())\n"
        "    refused(lambda: torch.ones(3).to('vdev'))\n"
        "    refused(lambda: torch.vdev.synchronize())\n"
        "    refused(lambda: torch.vdev.Stream())\n"
        "    refused(lambda: torch.vdev.init())\n"
        "    globals().pop('x')\n"
        "in_child(child)\n"
        "assert (x + 1).sum().item() == 6\n"
    )


def test_a_child_of_a_process_that_used_none(run_python):
    run_python(
        CHILD + "torch.vdev.set_device(1)\n"
        "torch.manual_seed(1)\n"
        "def child():\n"
        "    assert not torch.vdev._is_in_bad_fork()\n"
        "    assert torch.ones(3, device='vdev').sum().item() == 3\n"
        "    torch.vdev._launch_host_func(lambda: None)\n"
        "    torch.vdev.synchronize()\n"
        "in_child(child)\n"
        "in_child(child)\n"
        "assert torch.ones(3, device='vdev').sum().item() == 3\n"
    )


def test_forks_beside_host_functions(run_python):
    """Python 3.11 waits in the child for a lock under which another thread made its state."""
    run_python(
        CHILD + "streams = [torch.vdev.Stream() for _ in range(8)]\n"
        "for _ in range(100):\n"
        "    for stream in streams:\n"
        "        with torch.vdev.stream(stream):\n"
        "            torch.vdev._launch_host_func(lambda: None)\n"
        "    in_child(lambda: None)\n"
        "torch.vdev.synchronize()\n"
    )


def test_child_that_ends_in_the_ordinary_way(run_python):
    result = run_python(
        "import os, sys, torch, vccl\n"
        "x = torch.ones(3, device='vdev')\n"
        "torch.vdev._launch_host_func(lambda: None)\n"
        "torch.vdev.synchronize()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n",
        # Python 3.12 warns of every fork of a process that has threads.
        PYTHONWARNINGS="ignore:This process:DeprecationWarning",
    )
    assert result.stderr == ""


def test_data_loader_workers(run_python):
    run_python(
        "import torch, vccl\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "x = torch.ones(3, device='vdev')\n"
        "data = TensorDataset(torch.arange(64.0))\n"
        "loader = DataLoader(data, batch_size=8, num_workers=2, timeout=300,\n"
        "                    multiprocessing_context='fork', pin_memory=True)\n"
        "total = 0\n"
        "for _ in range(2):\n"
        "    for (batch,) in loader:\n"
        "        assert batch.is_pinned()\n"
        "        total += batch.to('vdev', non_blocking=True).sum().item()\n"
        "assert total == 2 * sum(range(64))\n"
    )


def test_spawned_processes_use_cards(run_python):
    run_python(
        "import torch, vccl, multiprocessing as mp\n"
        "if __name__ == '__main__':\n"
        "    x = torch.ones(3, device='vdev')\n"
        "    code = \"import torch, vccl; assert torch.ones(3, device='vdev').sum().item() == 3\"\n"
        "    process = mp.get_context('spawn').Process(target=exec, args=(code,))\n"
        "    process.start()\n"
        "    process.join(600)\n"
        "    assert process.exitcode == 0\n"
    )
