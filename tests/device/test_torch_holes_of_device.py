"""The holes in torch that the device's patches fill. A test that fails here says that its patch can go."""

import multiprocessing
import warnings
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import pytest
import torch
from torch.multiprocessing import reductions
from unpatched import unpatched


def test_hole_of_dlpack_device():
    x = torch.ones(3, device="vdev")
    with unpatched("dlpack_device"), pytest.raises(ValueError, match="Unknown device type vdev"):
        torch.from_dlpack(x)


def test_hole_of_process_sharing(capfd):
    x = torch.ones(3, device="vdev")
    reducers = ForkingPickler._extra_reducers
    with unpatched("process_sharing"), mock.patch.dict(reducers):
        reductions.init_reductions()
        queue = multiprocessing.get_context("spawn").Queue()
        queue.put(x)
        queue.put("what comes next")
        assert queue.get(timeout=300) == "what comes next"
        queue.close()
        queue.join_thread()
    assert "Traceback" in capfd.readouterr().err  # which the queue's thread has printed


def test_hole_of_profiler():
    from torch.profiler import ProfilerActivity, profile

    with unpatched("profiler"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as recorded:
            torch.ones(3, device="vdev") + 1
    devices = {event.device_type for event in recorded.events()}
    assert devices == {torch.autograd.DeviceType.CPU}


def test_hole_of_inductor():
    x = torch.ones(3, device="vdev")
    with unpatched("inductor"), pytest.raises(Exception, match="vdev"):
        torch.compile(lambda x: x * 2)(x)
