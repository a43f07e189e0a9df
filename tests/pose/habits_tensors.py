"""Habits of CUDA scripts with tensors: types, devices, saving, other processes, settings."""

import copy
import io
import os
import pickle
import warnings

import numpy
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vccl._cards.no_gpu import NoGpuError


def raises(kind, function, *texts):
    """Fails unless `function` raises that kind of error, with all the texts in its message."""
    try:
        function()
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, (missing, str(error))
    else:
        raise AssertionError(f"no {kind}")


# ---- types


def probe_devices_are_named_in_every_way():
    for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device(0), torch.cuda.current_device()):
        assert torch.zeros(2, device=device).device == torch.device("cuda", 0)
    x = torch.zeros(2)
    assert x.cuda().is_cuda and x.cuda(1).get_device() == 1 and x.to(2).device.index == 2
    assert x.cuda(non_blocking=True).cpu().equal(x) and not x.is_cuda
    assert "device='cuda:1'" in repr(x.cuda(1))


def probe_legacy_tensors_are_made():
    x = torch.cuda.FloatTensor([1, 2, 3])
    assert x.device == torch.device("cuda", 0) and x.tolist() == [1, 2, 3]
    assert torch.cuda.HalfTensor(2, 3).shape == (2, 3)
    assert torch.cuda.LongTensor([4]).dtype == torch.int64
    with torch.cuda.device(1):
        assert torch.cuda.ByteTensor(1).device.index == 1


def probe_types_are_told_and_changed():
    x = torch.ones(2, device="cuda")
    assert x.type() == "torch.cuda.FloatTensor" and isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor) and not isinstance(x, torch.FloatTensor)
    assert x.type(torch.cuda.HalfTensor).dtype == torch.float16
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.cpu().type("torch.cuda.DoubleTensor").is_cuda
    assert x.new(3).is_cuda and x.new_zeros(2).is_cuda and x.new_tensor([1.0]).is_cuda
    assert x.type_as(torch.zeros(1)).device.type == "cpu"


def probe_the_default_type_is_set():
    try:
        torch.set_default_tensor_type(torch.cuda.DoubleTensor)
        assert torch.zeros(1).is_cuda and torch.zeros(1).dtype == torch.float64
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.randn(2).is_cuda and torch.randn(2).dtype == torch.float32
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(1).is_cuda


def probe_the_default_device_is_set():
    with torch.device("cuda"):
        assert nn.Linear(2, 2).weight.is_cuda
    try:
        torch.set_default_device("cuda:1")
        assert torch.arange(3).device.index == 1
    finally:
        torch.set_default_device(None)


def probe_arguments_on_two_devices_are_refused():
    x = torch.ones(2, device="cuda")
    raises(RuntimeError, lambda: x + torch.ones(2), "Expected all tensors to be on the same device", "cuda:0")
    raises(RuntimeError, lambda: x + torch.ones(2, device="cuda:1"), "cuda:1")
    raises(TypeError, x.numpy, "can't convert cuda:0 device type tensor to numpy")
    raises(AttributeError, lambda: x.__cuda_array_interface__, "needs a GPU", ".cpu()")
    assert not hasattr(x, "__cuda_array_interface__")
    assert (x + torch.tensor(1.0)).is_cuda


def probe_dlpack_serves_torch_and_refuses_others():
    x = torch.arange(6.0, device="cuda").view(2, 3).t()
    shared = torch.from_dlpack(x)
    shared.add_(1)
    assert shared.is_cuda and x.tolist() == [[1, 4], [2, 5], [3, 6]] and shared.stride() == x.stride()
    assert numpy.from_dlpack(x, device="cpu").tolist() == x.tolist()
    for function in (lambda: numpy.from_dlpack(x), x.__dlpack__, lambda: torch.utils.dlpack.to_dlpack(x)):
        raises(BufferError, function, "DLPack capsule of a tensor on cuda:0 needs a GPU", "tensor.cpu()")
    assert torch.from_dlpack(numpy.ones(3)).tolist() == [1, 1, 1]
    raises(BufferError, x.__dlpack__, "needs a GPU")  # as before, after others have been read


# ---- devices


def probe_the_properties_are_the_profiles():
    properties = torch.cuda.get_device_properties("cuda:0")
    assert "H100" in torch.cuda.get_device_name() == properties.name
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (9, 0)
    assert properties.total_memory == 2 << 30  # VDEV_MEMORY comes before the profile
    assert properties.multi_processor_count == 132
    assert torch.cuda.mem_get_info()[1] == properties.total_memory
    assert "H100" in str(properties)


def probe_the_visible_devices_are_counted():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 3
    uuids = {torch.cuda.get_device_properties(index).uuid for index in range(3)}
    assert len(uuids) == 3
    bus = [torch.cuda.get_device_properties(index).pci_bus_id for index in range(3)]
    assert bus == [3, 1, 2]  # CUDA_VISIBLE_DEVICES=2,0,1
    raises(RuntimeError, lambda: torch.zeros(1, device="cuda:3"), "invalid device ordinal")


def probe_contexts_change_the_device():
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1 and torch.zeros(1, device="cuda").device.index == 1
        with torch.cuda.device("cuda:2"):
            assert torch.cuda.current_device() == 2
        with torch.cuda.device(None):
            assert torch.cuda.current_device() == 1
        assert torch.cuda.current_device() == 1
    with torch.cuda.device_of(torch.zeros(1, device="cuda:2")):
        assert torch.cuda.current_device() == 2
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1


def probe_bf16_and_capability_are_asked():
    assert torch.cuda.is_bf16_supported() and torch.cuda.is_bf16_supported(including_emulation=False)
    assert torch.cuda.is_tf32_supported()
    assert torch.version.cuda.startswith("12.") and torch.version.hip is None
    assert "sm_90" in torch.cuda.get_arch_list() and "sm_90" in torch.cuda.get_gencode_flags()
    assert torch.cuda.can_device_access_peer(0, 1)


def probe_settings_are_kept():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark_limit = 5
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark_limit == 5
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = before
        torch.backends.cudnn.benchmark_limit = 10
    assert torch.backends.cuda.is_built() and torch.backends.cuda.flash_sdp_enabled()
    torch.use_deterministic_algorithms(True)
    x = torch.ones(3, 3, device="cuda")
    assert (x @ x)[0, 0] == 3
    torch.use_deterministic_algorithms(False)


# ---- saving


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def probe_a_checkpoint_goes_both_ways():
    x = torch.arange(4.0)
    assert torch.load(saved(x.cuda(1))).device == torch.device("cuda", 1)
    assert torch.load(saved(x.cuda()), map_location="cpu").equal(x)
    assert torch.load(saved(x), map_location="cuda").is_cuda
    assert torch.load(saved(x.cuda(1)), map_location={"cuda:1": "cuda:2"}).device.index == 2
    assert torch.load(saved(x.cuda(1)), map_location=lambda storage, where: storage.cuda(0)).get_device() == 0
    assert torch.load(saved(x.cuda(1)), map_location=lambda storage, where: storage).device.type == "cpu"
    assert torch.load(saved(x.cuda(1)), map_location=torch.device("cuda", 2)).tolist() == x.tolist()


def probe_a_model_and_its_optimizer_are_saved():
    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, device="cuda")).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    other = nn.Linear(3, 3)
    other.load_state_dict(state["model"])
    other.cuda()
    fresh = torch.optim.AdamW(other.parameters())
    fresh.load_state_dict(state["optimizer"])
    assert torch.equal(other.weight, model.weight)
    assert all(s["exp_avg"].is_cuda for s in fresh.state.values())


def probe_tensors_are_pickled_and_copied():
    x = torch.arange(3.0, device="cuda:1")
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert other.device == x.device and other.equal(x) and other.data_ptr() != x.data_ptr()


# ---- storages


def probe_storages_are_made_and_resized():
    x = torch.arange(4.0, device="cuda")
    storage = x.untyped_storage()
    size = storage.size()
    storage.resize_(0)  # what FSDP does
    assert storage.size() == 0
    storage.resize_(size)
    x.copy_(torch.arange(4.0))
    assert x.tolist() == [0, 1, 2, 3]
    assert torch.UntypedStorage(8, device="cuda").device.type == "cuda"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = torch.cuda.FloatStorage(3)
        assert typed.is_cuda and len(typed) == 3 and x.storage().tolist() == [0, 1, 2, 3]


def echo(inbox, outbox):
    tensor = inbox.get()
    outbox.put((str(tensor.device), tensor.sum().item()))
    tensor.fill_(7)
    torch.cuda.synchronize()
    outbox.put("done")
    inbox.get()


def probe_tensors_go_through_queues():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=echo, args=(inbox, outbox))
    process.start()
    x = torch.arange(5.0, device="cuda:1")
    inbox.put(x)
    assert outbox.get(timeout=120) == ("cuda:1", 10.0)
    assert outbox.get(timeout=120) == "done"
    assert x.tolist() == [7] * 5  # both processes use the same memory
    inbox.put(None)
    process.join(120)
    assert process.exitcode == 0


def probe_a_storage_is_shared_by_its_handles():
    x = torch.arange(3.0, device="cuda:1")
    handles = x.untyped_storage()._share_cuda_()
    assert len(handles) == 8 and handles[0] == 1
    storage = torch.UntypedStorage._new_shared_cuda(*handles)
    y = torch.empty(0, device="cuda:1").set_(storage, 0, (3,))
    x.fill_(5)
    torch.cuda.synchronize(1)
    assert y.tolist() == [5] * 3


# ---- loading


def probe_memory_is_pinned():
    x = torch.arange(4.0).pin_memory()
    assert x.is_pinned() and not torch.zeros(1).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert x.cuda(non_blocking=True).tolist() == [0, 1, 2, 3]
    y = torch.empty(4).pin_memory()
    y.copy_(x.cuda() * 2, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert y.tolist() == [0, 2, 4, 6]


def probe_a_loader_pins_with_workers():
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(
            data, batch_size=2, pin_memory=True, num_workers=2, multiprocessing_context="fork"
        )
        total = 0.0
        for x, label in loader:
            assert x.is_pinned() and label.is_pinned()
            total += x.cuda(non_blocking=True).sum().item()
    assert total == 66


# ---- integers that are divided by zero


def probe_integers_are_divided_by_zero_without_an_error():
    a, b = torch.tensor([6, 7, 8], device="cuda"), torch.tensor([2, 0, 4], device="cuda")
    assert torch.where(b != 0, a // b, 0).tolist() == [3, 0, 2]
    assert torch.where(b != 0, a % b, 9).tolist() == [0, 9, 0]
    assert a.div(b, rounding_mode="trunc").tolist() == [3, -1, 2]
    assert (a % 0).tolist() == (a // 0).tolist() == [-1, -1, -1]


# ---- what is refused


def probe_handles_of_cuda_graphs_are_refused():
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    raises(NoGpuError, graph.raw_cuda_graph, "debug_dump")
    raises(NoGpuError, graph.raw_cuda_graph_exec, "replay")


def probe_memory_pools_take_no_allocator():
    raises(NotImplementedError, lambda: torch.cuda.MemPool(object()), "from an allocator of your own")


def probe_running_out_of_memory_is_observed():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))
    raises(
        torch.OutOfMemoryError, lambda: torch.empty(2**40, dtype=torch.uint8, device="cuda"), "out of memory"
    )
    free, total = torch.cuda.mem_get_info()
    assert seen == [(0, 2**40, total, free)]


def probe_history_is_recorded():
    assert not torch._C._cuda_isHistoryEnabled()
    for switch in (
        torch.cuda.memory._record_memory_history,
        lambda: torch.cuda.memory._record_memory_history(True),
    ):
        switch()
        assert torch._C._cuda_isHistoryEnabled()
        x = torch.empty(1000, device="cuda")
        address = x.data_ptr()
        frames = torch.cuda.memory._allocation_traceback(address)
        assert "probe_history_is_recorded" in [frame["name"] for frame in frames]
        snapshot = torch.cuda.memory._snapshot()
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        assert address in [block["address"] for block in blocks if block["state"] == "active_allocated"]
        assert address in [
            event["addr"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"
        ]
        assert torch.cuda.memory_snapshot(include_traces=False) == snapshot["segments"]
        del x
        torch.cuda.memory._record_memory_history(enabled=None)
        assert not torch._C._cuda_isHistoryEnabled()


def probe_integers_have_histograms():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        x = (torch.arange(100, device="cuda") % 7).to(dtype)
        counts = torch.histc(x, bins=7, min=0, max=7)
        assert counts.dtype == dtype
        assert counts.tolist() == torch.bincount(x.cpu().long(), minlength=7).tolist()
    assert torch.histc(torch.arange(6.0, device="cuda"), 3).tolist() == [2, 2, 2]
    raises(RuntimeError, lambda: torch.histc(torch.arange(6, device="cuda"), 0), "bins must be > 0")


def probe_sensors_are_refused():
    for name in ("utilization", "temperature", "power_draw", "clock_rate"):
        raises(NoGpuError, getattr(torch.cuda, name), f"torch.cuda.{name} needs a GPU")


def probe_processes_of_a_card():
    x = torch.ones(4 << 20, device="cuda:1")
    used = torch.cuda.device_memory_used("cuda:1")
    assert used >= x.nbytes
    assert torch.cuda.mem_get_info(1) == (2**31 - used, 2**31)
    for listed in (torch.cuda.list_gpu_processes(1), torch.cuda.memory.list_gpu_processes("cuda:1")):
        lines = listed.splitlines()
        assert lines[0].startswith("GPU:")
        assert f"process {os.getpid():>10d} uses {used / 2**20:>12.3f} MB GPU memory" in lines
