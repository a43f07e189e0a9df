"""Streams of high priority."""

import pytest
import torch


def test_the_range():
    assert torch.vdev.Stream.priority_range() == (0, -1)


@pytest.mark.parametrize("priority", [-5, -1, 0, 5])
def test_every_priority_makes_a_stream(priority):
    stream = torch.vdev.Stream(priority=priority)
    with torch.vdev.stream(stream):
        x = torch.ones(3, device="vdev") * 2
    torch.vdev.synchronize()
    assert x.tolist() == [2, 2, 2]
    # The pool has 32 streams of each priority, those of high priority last.
    assert (stream.stream_id > 32) == (priority < 0)
